//! Tables of n-grams, learned from a model's output or from text that it reads.
//!
//! The likeliest tokens at each position are learned with their probabilities ([`NgramLearner`]);
//! no hidden states are stored, and nothing is trained.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polydraft::Token;
use polydraft_engine::drafter::ngram::{LEARNED_TOP_K, NgramLearner, NgramTable};
use polydraft_models::{Loaded, Precision};

use crate::duplicates::SeenSamples;
use crate::open_sample::SampleSettings;
use crate::origin::write_file;
use crate::plan;
use crate::shard::{Sample, SampleData};
use crate::text_files;
use crate::writer::{self, MIN_SAMPLE_TOKENS, WriterSettings};

/// Settings for learning a table of n-grams.
#[derive(Debug, Clone)]
pub struct NgramPlan {
    /// Model: a directory or a GGUF file.
    pub target: PathBuf,
    /// Weight type; `None` is polydraft's default.
    pub dtype: Option<Precision>,
    /// File of the table; an existing table is continued.
    pub out: PathBuf,
    /// Total number of tokens to learn from, including those of an existing table.
    pub tokens: u64,
    /// Number of samples generated at once.
    pub batch_size: usize,
    /// Maximum number of tokens per sample.
    pub max_sample_tokens: usize,
    /// Temperatures; each sample uses one of them.
    pub temperatures: Vec<f64>,
    /// Text files to read once, instead of generating samples.
    pub text_files: Vec<PathBuf>,
}

/// Progress of learning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NgramProgress {
    /// Number of learned tokens.
    pub learned: u64,
    /// Number of tokens in samples that are being generated.
    pub open_tokens: usize,
    /// Estimated acceptance rate of drafts from the table, on the last part before it was learned.
    pub accepted: Option<f64>,
}

/// Tokens that are generated before they are learned.
const PART_TOKENS: usize = 50_000;
/// Tokens of a text that are read before they are learned.
const TEXT_PART_TOKENS: usize = 4096;
/// One in this many positions is used to estimate the acceptance rate.
const CHECKED_FRACTION: usize = 4;
/// Interval at which the table is stored; it is also stored at the end.
const STORE_INTERVAL: Duration = Duration::from_secs(60);

/// Learns until the planned number of tokens is reached, or until `watch` returns false.
///
/// # Errors
/// A model that cannot be loaded; a table of another model; a full disk.
pub fn learn_ngrams(
    plan: &NgramPlan,
    watch: &mut dyn FnMut(NgramProgress) -> bool,
) -> Result<NgramTable> {
    plan::check(plan.batch_size, plan.max_sample_tokens, &plan.temperatures)?;
    // Checked before hours of computation.
    let existing = match plan.out.exists() {
        true => Some(read(&plan.out)?),
        false => {
            let folder = plan.out.parent().filter(|folder| !folder.as_os_str().is_empty());
            let out = plan.out.display();
            ensure!(
                folder.is_none_or(|folder| folder.is_dir()),
                "{out}: expected an existing folder"
            );
            File::create_new(&plan.out)
                .and_then(|_| std::fs::remove_file(&plan.out))
                .with_context(|| format!("writing {out}"))?;
            None
        }
    };
    let mut loaded = plan::open(&plan.target, plan.dtype, plan.batch_size)?;
    let vocabulary = &loaded.language.vocabulary;
    let mut learner = match existing {
        Some(table) => NgramLearner::from_table(&table, vocabulary)
            .with_context(|| format!("continuing {}", plan.out.display()))?,
        None => NgramLearner::new(vocabulary),
    };
    let mut parts = plan::encode_files(&plan.text_files, TEXT_PART_TOKENS, &loaded)?.into_iter();
    let (mut seen, mut acceptance_rate, mut last_stored) =
        (SeenSamples::default(), None, Instant::now());
    loop {
        let progress =
            NgramProgress { learned: learner.learned(), open_tokens: 0, accepted: acceptance_rate };
        if !watch(progress) {
            break;
        }
        let samples = match plan.text_files.is_empty() {
            true if progress.learned >= plan.tokens => break,
            true => {
                let mut report = |open| watch(NgramProgress { open_tokens: open, ..progress });
                write(plan, &mut loaded, &mut seen, progress.learned, &mut report)?
            }
            false => parts
                .next()
                .map(|part| {
                    let data = SampleData::Likeliest(LEARNED_TOP_K);
                    text_files::read(&mut loaded.model, &part, plan.max_sample_tokens, data)
                })
                .transpose()?,
        };
        let Some(samples) = samples else { break };
        // An empty table drafts nothing.
        acceptance_rate = estimate_acceptance(&learner, &samples).filter(|_| learner.learned() > 0);
        for Sample { tokens, likeliest, .. } in &samples {
            for (position, likeliest) in likeliest.iter().enumerate().filter(|(_, p)| !p.is_empty())
            {
                learner.learn(&tokens[..position], likeliest);
            }
        }
        if plan.text_files.is_empty() && learner.learned() == progress.learned {
            break;
        }
        if last_stored.elapsed() > STORE_INTERVAL {
            write_file(&plan.out, &learner.table().to_bytes())?;
            last_stored = Instant::now();
        }
    }
    let table = learner.table();
    if table.learned() > 0 {
        write_file(&plan.out, &table.to_bytes())?;
    }
    Ok(table)
}

fn write(
    plan: &NgramPlan,
    loaded: &mut Loaded,
    seen: &mut SeenSamples,
    learned: u64,
    report: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Vec<Sample>>> {
    // What one sample takes: fewer tokens would be dropped as too short to learn from.
    let least = 2 * MIN_SAMPLE_TOKENS;
    let left = plan.tokens.saturating_sub(learned);
    let left = usize::try_from(left).unwrap_or(usize::MAX).max(least);
    let settings = WriterSettings {
        sample: SampleSettings {
            max_tokens: plan.max_sample_tokens,
            temperatures: &plan.temperatures,
            data: SampleData::Likeliest(LEARNED_TOP_K),
        },
        batch_size: plan.batch_size.min(left / least),
        tokens: PART_TOKENS.min(left),
        takes_cut: true,
        // A seed that no earlier part used, so that its samples differ.
        seed: learned + 1,
    };
    writer::write(loaded, &settings, seen, report)
}

/// Estimates the acceptance rate: the overlap of the table with distributions that it has not
/// learned.
fn estimate_acceptance(learner: &NgramLearner, samples: &[Sample]) -> Option<f64> {
    let positions = samples.iter().flat_map(|sample| {
        let all =
            sample.likeliest.iter().enumerate().filter(|(_, likeliest)| !likeliest.is_empty());
        all.map(|(position, likeliest)| (&sample.tokens[..position], likeliest))
    });
    let overlap = |(before, likeliest): (&[Token], &Vec<_>)| learner.overlap(before, likeliest);
    let overlaps: Vec<f64> = positions.step_by(CHECKED_FRACTION).map(overlap).collect();
    (!overlaps.is_empty()).then(|| overlaps.iter().sum::<f64>() / overlaps.len() as f64)
}

fn read(file: &Path) -> Result<NgramTable> {
    let expectation = || {
        let file = file.display();
        format!("{file}: expected a table to continue, or no file")
    };
    let bytes =
        polydraft_files::read(file, polydraft_files::FileKind::NGRAMS).with_context(expectation)?;
    NgramTable::from_bytes(&bytes).with_context(expectation)
}
