//! A table of n-grams from what a model writes, or from text that it reads.
//!
//! Of each token the likeliest ones are learned with their probabilities ([`NgramLearner`]); no
//! state is kept, and nothing is trained.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polydraft::Token;
use polydraft_engine::drafter::ngram::{LEARNED_TOP_K, NgramLearner, NgramTable};
use polydraft_models::{Loaded, Precision};

use crate::given;
use crate::origin::replace;
use crate::plan;
use crate::repeats::SeenSamples;
use crate::shard::{Sample, SampleData};
use crate::talk::SampleSettings;
use crate::writer::{self, WriterSettings};

/// What is to be learned.
#[derive(Debug, Clone)]
pub struct NgramPlan {
    /// The model: a directory or a GGUF file.
    pub target: PathBuf,
    /// The type that its weights are stored in; none is as `polydraft` would hold them.
    pub dtype: Option<Precision>,
    /// The table. One that is there is gone on with.
    pub out: PathBuf,
    /// Tokens to learn from in all, those that the table has learned already among them.
    pub tokens: u64,
    /// Samples that are written at once.
    pub batch_size: usize,
    /// Tokens of a sample at most.
    pub max_sample_tokens: usize,
    /// Temperatures, of which each sample takes one.
    pub temperatures: Vec<f64>,
    /// Text to read instead, all of it once.
    pub text_files: Vec<PathBuf>,
}

/// Where the learning is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NgramProgress {
    /// Tokens that are learned.
    pub learned: u64,
    /// Those of samples that are being written.
    pub open_tokens: usize,
    /// How often a token that is drafted from the table would be accepted in such text: of the last
    /// part, before it was learned.
    pub accepted: Option<f64>,
}

/// Tokens that are written before they are learned: what an interruption costs.
const PART: usize = 50_000;
/// The same of text that is read.
const READ: usize = 4096;
/// One place in so many tells what is accepted.
const LOOKED_AT: usize = 4;
/// The table is stored so often, and at the end.
const STORED: Duration = Duration::from_secs(60);

/// Learns until there is as much as the plan asks for, or until `watch` says no.
///
/// # Errors
/// A model that cannot be loaded; a table of another model's; a disk that is full.
pub fn learn_ngrams(
    plan: &NgramPlan,
    watch: &mut dyn FnMut(NgramProgress) -> bool,
) -> Result<NgramTable> {
    plan::check(plan.batch_size, plan.max_sample_tokens, &plan.temperatures)?;
    // Before hours are spent.
    let known = match plan.out.exists() {
        true => Some(read(&plan.out)?),
        false => {
            let folder = plan.out.parent().filter(|folder| !folder.as_os_str().is_empty());
            ensure!(
                folder.is_none_or(|folder| folder.is_dir()),
                "{}: expected a folder that exists",
                plan.out.display()
            );
            None
        }
    };
    let mut loaded = plan::open(&plan.target, plan.dtype, plan.batch_size)?;
    let vocabulary = &loaded.language.vocabulary;
    let mut learner = match known {
        Some(table) => NgramLearner::from_table(&table, vocabulary)
            .with_context(|| format!("going on with {}", plan.out.display()))?,
        None => NgramLearner::new(vocabulary),
    };
    let mut given = plan::encoded(&plan.text_files, READ, &loaded)?.into_iter();
    let (mut said, mut accepted, mut stored) = (SeenSamples::default(), None, Instant::now());
    loop {
        let at = NgramProgress { learned: learner.learned(), open_tokens: 0, accepted };
        if !watch(at) {
            break;
        }
        let samples = match plan.text_files.is_empty() {
            true if at.learned >= plan.tokens => break,
            true => {
                let mut go_on = |open| watch(NgramProgress { open_tokens: open, ..at });
                write(plan, &mut loaded, &mut said, at.learned, &mut go_on)?
            }
            false => given
                .next()
                .map(|part| {
                    let kept = SampleData::Likeliest(LEARNED_TOP_K);
                    given::read(&mut loaded.model, &part, plan.max_sample_tokens, kept)
                })
                .transpose()?,
        };
        let Some(samples) = samples else { break };
        accepted = accepted_of(&learner, &samples);
        for Sample { tokens, likeliest, .. } in &samples {
            for (place, likely) in likeliest.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
                learner.learn(&tokens[..place], likely);
            }
        }
        if stored.elapsed() > STORED {
            replace(&plan.out, &learner.table().to_bytes())?;
            stored = Instant::now();
        }
    }
    let table = learner.table();
    if table.learned() > 0 {
        replace(&plan.out, &table.to_bytes())?;
    }
    Ok(table)
}

fn write(
    plan: &NgramPlan,
    loaded: &mut Loaded,
    said: &mut SeenSamples,
    learned: u64,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Vec<Sample>>> {
    let left = plan.tokens.saturating_sub(learned);
    let writing = WriterSettings {
        settings: SampleSettings {
            max_sample_tokens: plan.max_sample_tokens,
            temperatures: &plan.temperatures,
            kept: SampleData::Likeliest(LEARNED_TOP_K),
        },
        batch_size: plan.batch_size,
        tokens: PART.min(usize::try_from(left).unwrap_or(PART)),
        // Other samples than those that were learned.
        seed: learned + 1,
    };
    writer::write(loaded, &writing, said, go_on)
}

/// How much of the distributions the table has learned, in text that it has not.
fn accepted_of(learner: &NgramLearner, samples: &[Sample]) -> Option<f64> {
    let places = lessons.iter().flat_map(|sample| {
        let all = sample.likeliest.iter().enumerate().filter(|(_, likely)| !likely.is_empty());
        all.map(|(place, likely)| (&sample.tokens[..place], likely))
    });
    let overlap = |(text, likely): (&[Token], &Vec<_>)| learner.overlap(text, likely);
    let looked: Vec<f64> = places.step_by(LOOKED_AT).map(overlap).collect();
    (!looked.is_empty()).then(|| looked.iter().sum::<f64>() / looked.len() as f64)
}

fn read(file: &Path) -> Result<NgramTable> {
    let what = || {
        let file = file.display();
        format!("{file}: expected a table to go on with, or a file that is not there yet")
    };
    let bytes =
        polydraft_files::read(file, polydraft_files::FileKind::NGRAMS).with_context(what)?;
    NgramTable::from_bytes(&bytes).with_context(what)
}
