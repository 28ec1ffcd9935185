//! File format of samples: tokens, hidden states in 8 bits, and log-sum-exps of the logits.
//!
//! | tensor | shape | contents |
//! |---|---|---|
//! | `tokens` | `[N]`, i32 | tokens of all samples, concatenated |
//! | `lengths` | `[samples]`, i32 | number of tokens per sample |
//! | `kinds` | `[samples]`, u8 | number of each sample's [`Kind`](crate::Kind) |
//! | `taught` | `[N]`, u8 | 1 for tokens drawn from the model's distribution, which are learned |
//! | `log_sums` | `[N]`, f32 | log Σ exp(logit) before a learned token, at temperature 1 |
//! | `states` | `[N, W]`, i8 | states after a token, of all layers and the norm; 0 after the last |
//! | `scales` | `[N, W / 32]`, f16 | factor of each group of 32 numbers |

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use polydraft::{Distribution, Token};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::origin::write_file;

/// Numbers of a state that share a scale.
pub const GROUP: usize = 32;

/// A sample with the data that a head or an n-gram table learns from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub kind: u8,
    pub tokens: Vec<Token>,
    pub taught: Vec<bool>,
    pub log_sums: Vec<f32>,
    /// Hidden states of all tokens but the last, `[tokens - 1, width]`.
    pub states: Vec<f32>,
    /// Likeliest tokens before each learned token, ascending, with their probabilities at
    /// temperature 1.
    pub likeliest: Vec<Vec<(Token, f32)>>,
}

/// Data stored with the tokens of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleData {
    /// Hidden states, and log-sum-exps of the logits.
    HiddenStates,
    /// This many of the likeliest tokens at each position.
    Likeliest(usize),
}

impl SampleData {
    /// Returns the likeliest tokens of a distribution, if they are stored.
    pub fn likeliest(self, probs: &Distribution) -> Vec<(Token, f32)> {
        let Self::Likeliest(count) = self else { return Vec::new() };
        let mut tokens = probs.most_likely(count);
        tokens.sort_unstable();
        let likeliest = tokens.into_iter().map(|token| (token, probs.probability(token) as f32));
        likeliest.filter(|(_, p)| *p > 0.0).collect()
    }
}

/// Samples in the layout of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// Tokens of all samples.
    pub tokens: Vec<Token>,
    /// Number of tokens per sample.
    pub lengths: Vec<usize>,
    /// Kind of each sample.
    pub kinds: Vec<u8>,
    /// Whether each token was drawn from the model's distribution.
    pub taught: Vec<bool>,
    /// log Σ exp(logit) before each learned token.
    pub log_sums: Vec<f32>,
    /// Width of a token's states.
    pub width: usize,
    /// States in units of their scales, `[tokens, width]`.
    pub states: Vec<i8>,
    /// Scales of the groups, `[tokens, width / 32]`.
    pub scales: Vec<f16>,
}

impl Shard {
    pub(crate) fn new(samples: &[Sample], width: usize) -> Result<Self> {
        ensure!(
            width.is_multiple_of(GROUP),
            "expected hidden states of a multiple of {GROUP} numbers, got {width}"
        );
        let mut shard = Self {
            tokens: Vec::new(),
            lengths: Vec::new(),
            kinds: Vec::new(),
            taught: Vec::new(),
            log_sums: Vec::new(),
            width,
            states: Vec::new(),
            scales: Vec::new(),
        };
        for sample in samples {
            shard.tokens.extend(&sample.tokens);
            shard.lengths.push(sample.tokens.len());
            shard.kinds.push(sample.kind);
            shard.taught.extend(&sample.taught);
            shard.log_sums.extend(&sample.log_sums);
            for group in sample.states.as_chunks::<GROUP>().0 {
                shard.round(group);
            }
            shard.states.resize(shard.tokens.len() * width, 0);
            shard.scales.resize(shard.tokens.len() * width / GROUP, f16::ZERO);
        }
        Ok(shard)
    }

    fn round(&mut self, group: &[f32; GROUP]) {
        let largest = group.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let scale = f16::from_f32(largest / 127.0);
        let inverse = match scale.to_f32() {
            scale if scale > 0.0 && scale.is_finite() => 1.0 / scale,
            _ => 0.0,
        };
        self.scales.push(scale);
        self.states.extend(group.iter().map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8));
    }

    /// Returns the tokens of each sample.
    pub fn samples(&self) -> impl Iterator<Item = &[Token]> {
        let mut rest = &self.tokens[..];
        self.lengths.iter().map(move |length| {
            let (sample, remaining) = rest.split_at(*length);
            rest = remaining;
            sample
        })
    }

    /// Returns the path of a shard.
    #[must_use]
    pub fn path(folder: &Path, number: usize) -> PathBuf {
        folder.join(format!("shard-{number:04}.safetensors"))
    }

    /// Writes the shard to a folder atomically.
    pub(crate) fn save(&self, folder: &Path, number: usize) -> Result<()> {
        let (count, samples, width) = (self.tokens.len(), self.lengths.len(), self.width);
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect();
        let lengths: Vec<u8> =
            self.lengths.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect();
        let taught: Vec<u8> = self.taught.iter().map(|taught| u8::from(*taught)).collect();
        let log_sums: Vec<u8> = self.log_sums.iter().flat_map(|x| x.to_le_bytes()).collect();
        let states: Vec<u8> = self.states.iter().map(|x| x.cast_unsigned()).collect();
        let scales: Vec<u8> = self.scales.iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = |name, dtype, shape: &[usize], bytes| -> Result<_> {
            Ok((name, TensorView::new(dtype, shape.to_vec(), bytes)?))
        };
        let tensors = [
            view("tokens", Dtype::I32, &[count], &tokens)?,
            view("lengths", Dtype::I32, &[samples], &lengths)?,
            view("kinds", Dtype::U8, &[samples], &self.kinds)?,
            view("taught", Dtype::U8, &[count], &taught)?,
            view("log_sums", Dtype::F32, &[count], &log_sums)?,
            view("states", Dtype::I8, &[count, width], &states)?,
            view("scales", Dtype::F16, &[count, width / GROUP], &scales)?,
        ];
        write_file(&Self::path(folder, number), &safetensors::serialize(tensors, None)?)
    }

    /// Reads the samples of a shard as tokens; `None` if the shard does not exist.
    ///
    /// # Errors
    /// A file that is not a shard.
    pub(crate) fn read_samples(folder: &Path, number: usize) -> Result<Option<Vec<Vec<Token>>>> {
        let path = Self::path(folder, number);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let numbers = |name: &str| -> Result<Vec<i32>> {
            let tensors = SafeTensors::deserialize(&bytes)?;
            let tensor = tensors.tensor(name)?;
            ensure!(tensor.dtype() == Dtype::I32, "{name}: expected i32");
            let numbers = tensor.data().as_chunks().0.iter();
            Ok(numbers.map(|bytes| i32::from_le_bytes(*bytes)).collect())
        };
        let read = || -> Result<Vec<Vec<Token>>> {
            let (tokens, lengths) = (numbers("tokens")?, numbers("lengths")?);
            let mut tokens = tokens.into_iter().map(|token| token as Token);
            let samples: Vec<Vec<Token>> = lengths
                .into_iter()
                .map(|length| tokens.by_ref().take(length.max(0) as usize).collect())
                .collect();
            if tokens.next().is_some() {
                bail!("the lengths do not add up to the number of tokens");
            }
            Ok(samples)
        };
        let samples = read().with_context(|| {
            format!("{} is not a shard of samples: delete it to write it again", path.display())
        })?;
        Ok(Some(samples))
    }
}
