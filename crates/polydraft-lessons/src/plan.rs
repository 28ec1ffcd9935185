//! Writes shards of samples to a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polydraft::Token;
use polydraft_engine::{HiddenState, HiddenStates};
use polydraft_models::{LoadOptions, Loaded, Precision, SequenceLimits, is_gguf, load};
use serde_json::json;

use crate::duplicates::SeenSamples;
use crate::open_sample::SampleSettings;
use crate::origin::{self, Facts};
use crate::shard::{SampleData, Shard};
use crate::target;
use crate::text_files;
use crate::writer::{self, MIN_SAMPLE_TOKENS, WriterSettings};

/// Settings for writing shards.
#[derive(Debug, Clone)]
pub struct ShardPlan {
    /// Model: a directory or a GGUF file.
    pub target: PathBuf,
    /// Weight type; `None` is polydraft's default.
    pub dtype: Option<Precision>,
    /// Layers whose inputs are stored; `None` is the second, the middle one and the third from the
    /// end.
    pub layers: Option<Vec<usize>>,
    /// Folder of the shards.
    pub folder: PathBuf,
    /// Total number of tokens, including existing shards.
    pub tokens: usize,
    /// Approximate number of tokens per shard: the maximum loss by an interruption.
    pub shard: usize,
    /// Number of samples generated at once.
    pub batch_size: usize,
    /// Maximum number of tokens per sample.
    pub max_sample_tokens: usize,
    /// Temperatures; each sample uses one of them.
    pub temperatures: Vec<f64>,
    /// Text files to read, instead of generating samples.
    pub text_files: Vec<PathBuf>,
}

/// Progress of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardProgress {
    /// Number of complete shards.
    pub shards: usize,
    /// Number of tokens in complete shards.
    pub stored_tokens: usize,
    /// Number of tokens in samples that are being generated.
    pub open_tokens: usize,
}

/// Writes shards until the planned number of tokens is reached, or until `watch` returns false.
/// Continues after the existing shards of the folder; a shard does not depend on interruptions.
///
/// # Errors
/// A model that cannot be loaded, or that has no support for heads; a folder with samples of
/// another model; a full disk.
pub fn write_shards(plan: &ShardPlan, watch: &mut dyn FnMut(ShardProgress) -> bool) -> Result<()> {
    check(plan.batch_size, plan.max_sample_tokens, &plan.temperatures)?;
    ensure!(plan.shard > 0, "expected shards of at least one token");
    fs::create_dir_all(&plan.folder)
        .with_context(|| format!("creating the folder {}", plan.folder.display()))?;
    let mut loaded = open(&plan.target, plan.dtype, plan.batch_size)?;
    let layers = loaded.model.config().layers;
    let layers = plan.layers.clone().unwrap_or_else(|| target::default_layers(layers));
    let norm = loaded.model.last_norm();
    let mut facts = Facts::new();
    facts.insert("target".into(), origin::fingerprint(loaded.model.config(), norm).into());
    facts.insert("dtype".into(), precision(&plan.target, plan.dtype).to_string().into());
    facts.insert("layers".into(), json!(layers));
    facts.insert("given files".into(), plan.text_files.len().into());
    facts.insert("tokens of a text".into(), plan.max_sample_tokens.into());
    facts.insert("tokens of a shard".into(), plan.shard.into());
    origin::record(&plan.folder, facts)?;
    target::describe(&plan.folder, &loaded, &layers)?;
    let read = layers.iter().map(|layer| HiddenState::After(*layer));
    let states: Vec<HiddenState> = read.chain([HiddenState::Output]).collect();
    loaded.model.capture_hidden_states(&states)?;
    let width = states.len() * loaded.model.config().hidden;

    let (mut seen, mut progress) =
        (SeenSamples::default(), ShardProgress { shards: 0, stored_tokens: 0, open_tokens: 0 });
    while let Some(samples) = Shard::read_samples(&plan.folder, progress.shards)? {
        for sample in samples {
            seen.insert_if_new(&sample);
            progress.stored_tokens += sample.len();
        }
        progress.shards += 1;
    }
    let parts = encode_files(&plan.text_files, plan.shard, &loaded)?;
    while watch(progress) {
        let samples = if plan.text_files.is_empty() {
            if progress.stored_tokens >= plan.tokens {
                return Ok(());
            }
            let settings = WriterSettings {
                sample: SampleSettings {
                    max_tokens: plan.max_sample_tokens,
                    temperatures: &plan.temperatures,
                    data: SampleData::HiddenStates,
                },
                batch_size: plan.batch_size,
                tokens: plan.shard,
                takes_cut: false,
                seed: progress.shards as u64 + 1,
            };
            let mut report = |open| watch(ShardProgress { open_tokens: open, ..progress });
            match writer::write(&mut loaded, &settings, &mut seen, &mut report)? {
                Some(samples) => samples,
                None => return Ok(()),
            }
        } else {
            let Some(part) = parts.get(progress.shards) else { return Ok(()) };
            text_files::read(
                &mut loaded.model,
                part,
                plan.max_sample_tokens,
                SampleData::HiddenStates,
            )?
        };
        let shard = Shard::new(&samples, width)?;
        shard.save(&plan.folder, progress.shards)?;
        progress.shards += 1;
        progress.stored_tokens += shard.tokens.len();
    }
    Ok(())
}

/// Checks the settings of samples.
pub(crate) fn check(
    batch_size: usize,
    max_sample_tokens: usize,
    temperatures: &[f64],
) -> Result<()> {
    ensure!(batch_size > 0, "expected at least one sample at once");
    ensure!(
        max_sample_tokens >= MIN_SAMPLE_TOKENS,
        "expected samples of at least {MIN_SAMPLE_TOKENS} tokens, got {max_sample_tokens}"
    );
    let is_valid = |t: &f64| t.is_finite() && *t >= 0.0;
    ensure!(
        !temperatures.is_empty() && temperatures.iter().all(is_valid),
        "expected temperatures of 0 or more, got {temperatures:?}"
    );
    Ok(())
}

/// Returns the weight type: the given one, or polydraft's default for this path.
fn precision(target: &Path, dtype: Option<Precision>) -> Precision {
    dtype.unwrap_or(match is_gguf(target) {
        true => Precision::File,
        false => Precision::F32,
    })
}

/// Loads the target for this many open sequences.
pub(crate) fn open(target: &Path, dtype: Option<Precision>, batch_size: usize) -> Result<Loaded> {
    let options = LoadOptions { precision: precision(target, dtype), ..LoadOptions::default() };
    let mut loaded = load(target, options).context("loading the target")?;
    loaded.model.set_limits(SequenceLimits { open: batch_size, closed: 0, closed_bytes: 0 });
    Ok(loaded)
}

/// Tokenizes text files and splits the tokens into parts of at most `part` tokens.
pub(crate) fn encode_files(
    files: &[PathBuf],
    part: usize,
    loaded: &Loaded,
) -> Result<Vec<Vec<Token>>> {
    let mut parts = Vec::new();
    for path in files {
        let text = polydraft_files::read_text(path, polydraft_files::FileKind::TRAINING_TEXT)
            .with_context(|| format!("reading {}", path.display()))?;
        let tokens = loaded.language.tokenizer.encode(&text)?;
        parts.extend(tokens.chunks(part).map(<[Token]>::to_vec));
    }
    Ok(parts)
}
