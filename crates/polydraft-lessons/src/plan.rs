//! What is to be written, and the way there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use polydraft::Token;
use polydraft_engine::{HiddenState, HiddenStates};
use polydraft_models::{LoadOptions, Loaded, Precision, SequenceLimits, is_gguf, load};
use serde_json::json;

use crate::given;
use crate::origin::{self, Facts};
use crate::repeats::SeenSamples;
use crate::shard::{SampleData, Shard};
use crate::talk::SampleSettings;
use crate::target;
use crate::writer::{self, SHORTEST, WriterSettings};

/// What is to be written.
#[derive(Debug, Clone)]
pub struct ShardPlan {
    /// The model: a directory or a GGUF file.
    pub target: PathBuf,
    /// The type that its weights are stored in; none is as `polydraft` would hold them.
    pub dtype: Option<Precision>,
    /// Layers whose inputs are kept; none is the second, the middle one, the last but two.
    pub layers: Option<Vec<usize>>,
    /// Where the text goes.
    pub folder: PathBuf,
    /// Tokens in all, those that are there already among them.
    pub tokens: usize,
    /// Tokens of a shard, about: what an interruption can cost.
    pub shard: usize,
    /// Samples that are written at once.
    pub batch_size: usize,
    /// Tokens of a text at most.
    pub max_sample_tokens: usize,
    /// Temperatures, of which each text takes one.
    pub temperatures: Vec<f64>,
    /// Samples to read instead.
    pub text_files: Vec<PathBuf>,
}

/// Where the writing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardProgress {
    /// Shards that are done.
    pub shards: usize,
    /// Their tokens.
    pub stored_tokens: usize,
    /// Those of samples that are being written.
    pub open_tokens: usize,
}

/// Writes text until there is as much as the plan asks for, or until `watch` says no. What an
/// earlier call left in the folder is gone on with; a shard is the same in a run that was
/// interrupted and in one that was not.
///
/// # Errors
/// A model that cannot be loaded, or that no head can be made for; a folder of another model's
/// text; a disk that is full.
pub fn write_shards(plan: &ShardPlan, watch: &mut dyn FnMut(ShardProgress) -> bool) -> Result<()> {
    check(plan.batch_size, plan.max_sample_tokens, &plan.temperatures)?;
    ensure!(plan.shard > 0, "expected shards of at least one token");
    fs::create_dir_all(&plan.folder)
        .with_context(|| format!("making the folder {}", plan.folder.display()))?;
    let mut loaded = open(&plan.target, plan.dtype, plan.batch_size)?;
    let layers = loaded.model.config().layers;
    let layers = plan.layers.clone().unwrap_or_else(|| target::usual_layers(layers));
    let norm = loaded.model.last_norm();
    let mut facts = Facts::new();
    facts.insert("target".into(), origin::fingerprint(loaded.model.config(), norm).into());
    facts.insert("dtype".into(), precision(&plan.target, plan.dtype).to_string().into());
    facts.insert("layers".into(), json!(layers));
    facts.insert("given files".into(), plan.text_files.len().into());
    facts.insert("tokens of a text".into(), plan.max_sample_tokens.into());
    facts.insert("tokens of a shard".into(), plan.shard.into());
    origin::keep(&plan.folder, facts)?;
    target::describe(&plan.folder, &loaded, &layers)?;
    let read = layers.iter().map(|layer| HiddenState::After(*layer));
    let states: Vec<HiddenState> = read.chain([HiddenState::Output]).collect();
    loaded.model.capture_hidden_states(&states)?;
    let width = states.len() * loaded.model.config().hidden;

    let (mut said, mut progress) =
        (SeenSamples::default(), ShardProgress { shards: 0, stored_tokens: 0, open_tokens: 0 });
    while let Some(texts) = Shard::tokens_of(&plan.folder, progress.shards)? {
        for text in texts {
            said.is_new(&text);
            progress.stored_tokens += text.len();
        }
        progress.shards += 1;
    }
    let given = encoded(&plan.text_files, plan.shard, &loaded)?;
    while watch(progress) {
        let samples = if plan.text_files.is_empty() {
            if progress.stored_tokens >= plan.tokens {
                return Ok(());
            }
            let writing = WriterSettings {
                settings: SampleSettings {
                    max_sample_tokens: plan.max_sample_tokens,
                    temperatures: &plan.temperatures,
                    kept: SampleData::HiddenStates,
                },
                batch_size: plan.batch_size,
                tokens: plan.shard,
                seed: progress.shards as u64 + 1,
            };
            let mut go_on = |open| watch(ShardProgress { open_tokens: open, ..progress });
            match writer::write(&mut loaded, &writing, &mut said, &mut go_on)? {
                Some(samples) => samples,
                None => return Ok(()),
            }
        } else {
            let Some(part) = given.get(progress.shards) else { return Ok(()) };
            given::read(&mut loaded.model, part, plan.max_sample_tokens, SampleData::HiddenStates)?
        };
        let shard = Shard::new(&samples, width)?;
        shard.save(&plan.folder, progress.shards)?;
        progress.shards += 1;
        progress.stored_tokens += shard.tokens.len();
    }
    Ok(())
}

/// That samples can be written so.
pub(crate) fn check(
    batch_size: usize,
    max_sample_tokens: usize,
    temperatures: &[f64],
) -> Result<()> {
    ensure!(batch_size > 0, "expected at least one text at once");
    ensure!(
        max_sample_tokens >= SHORTEST,
        "expected samples of at least {SHORTEST} tokens, got {max_sample_tokens}"
    );
    let is_right = |t: &f64| t.is_finite() && *t >= 0.0;
    ensure!(
        !temperatures.is_empty() && temperatures.iter().all(is_right),
        "expected temperatures of 0 or more, got {temperatures:?}"
    );
    Ok(())
}

/// As `polydraft` stores the weights of such a path.
fn precision(target: &Path, dtype: Option<Precision>) -> Precision {
    dtype.unwrap_or(match is_gguf(target) {
        true => Precision::File,
        false => Precision::F32,
    })
}

/// The target, for so many samples at once.
pub(crate) fn open(target: &Path, dtype: Option<Precision>, batch_size: usize) -> Result<Loaded> {
    let options = LoadOptions { precision: precision(target, dtype), ..LoadOptions::default() };
    let mut loaded = load(target, options).context("loading the target")?;
    loaded.model.set_limits(SequenceLimits { open: batch_size, closed: 0, closed_bytes: 0 });
    Ok(loaded)
}

/// The tokens of given samples, in parts of so many.
pub(crate) fn encoded(files: &[PathBuf], part: usize, loaded: &Loaded) -> Result<Vec<Vec<Token>>> {
    let mut parts = Vec::new();
    for path in files {
        let text = polydraft_files::read_text(path, polydraft_files::FileKind::TRAINING_TEXT)
            .with_context(|| format!("reading {}", path.display()))?;
        let tokens = loaded.language.tokenizer.encode(&text)?;
        parts.extend(tokens.chunks(part).map(<[Token]>::to_vec));
    }
    Ok(parts)
}
