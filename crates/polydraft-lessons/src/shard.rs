//! Some samples in a file: tokens, states in 8 bits, the sums after the distributions.
//!
//! | tensor | shape | holds |
//! |---|---|---|
//! | `tokens` | `[N]`, i32 | the tokens of all samples, one text after the other |
//! | `lengths` | `[samples]`, i32 | how many of them each text has |
//! | `kinds` | `[samples]`, u8 | what each text is, as a number of [`Kind`](crate::Kind) |
//! | `taught` | `[N]`, u8 | 1 where the model wrote the token under its own distribution |
//! | `log_sums` | `[N]`, f32 | log Σ exp(logit) before a token that is taught, at temperature 1 |
//! | `states` | `[N, W]`, i8 | states after a token, of each layer and normed; zeros of the last |
//! | `scales` | `[N, W / 32]`, f16 | what each 32 of them are multiplied by |

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use polydraft::{Distribution, Token};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::origin::replace;

/// Numbers of a state that share a scale.
pub const GROUP: usize = 32;

/// A text with what is learned from it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub kind: u8,
    pub tokens: Vec<Token>,
    pub taught: Vec<bool>,
    pub log_sums: Vec<f32>,
    /// Hidden states of all tokens but the last, `[tokens - 1, width]`.
    pub states: Vec<f32>,
    /// Before each token that is taught the likeliest ones, ascending, with their probabilities at
    /// temperature 1.
    pub likeliest: Vec<Vec<(Token, f32)>>,
}

/// What is kept of a text besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleData {
    /// Hidden states, and the sums after its distributions.
    HiddenStates,
    /// So many of the likeliest tokens at each place.
    Likeliest(usize),
}

impl SampleData {
    /// The likeliest tokens of a distribution, if they are kept.
    pub fn likeliest(self, probs: &Distribution) -> Vec<(Token, f32)> {
        let Self::Likeliest(count) = self else { return Vec::new() };
        let mut tokens = probs.most_likely(count);
        tokens.sort_unstable();
        let likely = tokens.into_iter().map(|token| (token, probs.probability(token) as f32));
        likely.filter(|(_, p)| *p > 0.0).collect()
    }
}

/// Some samples, as they lie in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// The tokens of all samples.
    pub tokens: Vec<Token>,
    /// How many of them each text has.
    pub lengths: Vec<usize>,
    /// What each text is.
    pub kinds: Vec<u8>,
    /// Whether the model wrote a token under its own distribution.
    pub taught: Vec<bool>,
    /// log Σ exp(logit) before a token that is taught.
    pub log_sums: Vec<f32>,
    /// Numbers of a token's states.
    pub width: usize,
    /// States in units of their scales, `[tokens, width]`.
    pub states: Vec<i8>,
    /// `[tokens, width / 32]`
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
        let most = group.iter().fold(0f32, |most, x| most.max(x.abs()));
        let scale = f16::from_f32(most / 127.0);
        let inverse = match scale.to_f32() {
            scale if scale > 0.0 && scale.is_finite() => 1.0 / scale,
            _ => 0.0,
        };
        self.scales.push(scale);
        self.states.extend(group.iter().map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8));
    }

    /// Its samples.
    pub fn samples(&self) -> impl Iterator<Item = &[Token]> {
        let mut rest = &self.tokens[..];
        self.lengths.iter().map(move |length| {
            let (text, behind) = rest.split_at(*length);
            rest = behind;
            text
        })
    }

    /// Where a folder keeps a shard.
    #[must_use]
    pub fn path(folder: &Path, number: usize) -> PathBuf {
        folder.join(format!("shard-{number:04}.safetensors"))
    }

    /// Puts it into a folder, all of it or nothing.
    pub(crate) fn save(&self, folder: &Path, number: usize) -> Result<()> {
        let (count, texts, width) = (self.tokens.len(), self.lengths.len(), self.width);
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
            view("lengths", Dtype::I32, &[texts], &lengths)?,
            view("kinds", Dtype::U8, &[texts], &self.kinds)?,
            view("taught", Dtype::U8, &[count], &taught)?,
            view("log_sums", Dtype::F32, &[count], &log_sums)?,
            view("states", Dtype::I8, &[count, width], &states)?,
            view("scales", Dtype::F16, &[count, width / GROUP], &scales)?,
        ];
        replace(&Self::path(folder, number), &safetensors::serialize(tensors, None)?)
    }

    /// The samples of a shard of a folder, as tokens; none if there is no such shard.
    ///
    /// # Errors
    /// A file that is no shard.
    pub(crate) fn tokens_of(folder: &Path, number: usize) -> Result<Option<Vec<Vec<Token>>>> {
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
            let texts: Vec<Vec<Token>> = lengths
                .into_iter()
                .map(|length| tokens.by_ref().take(length.max(0) as usize).collect())
                .collect();
            if tokens.next().is_some() {
                bail!("lengths do not sum up to the tokens");
            }
            Ok(texts)
        };
        let texts = read().with_context(|| {
            format!("{} is no shard of text: delete it, and it is written anew", path.display())
        })?;
        Ok(Some(texts))
    }
}
