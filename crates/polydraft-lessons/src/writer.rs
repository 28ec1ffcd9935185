//! Generates many samples at once: each pass over the weights yields one token for each.

use anyhow::Result;
use polydraft::{Distribution, DraftTree};
use polydraft_engine::Sequences;
use polydraft_models::Loaded;
use rayon::prelude::*;

use crate::duplicates::SeenSamples;
use crate::open_sample::{DrawnToken, OpenSample, SampleSettings};
use crate::shard::Sample;

/// Minimum number of tokens per sample; shorter ones have little to learn from.
pub(crate) const MIN_SAMPLE_TOKENS: usize = 16;

/// Settings of generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterSettings<'a> {
    pub sample: SampleSettings<'a>,
    /// Number of samples generated at once.
    pub batch_size: usize,
    /// Total number of tokens: of whole samples approximately, of cut ones those taught, exactly.
    pub tokens: usize,
    /// Whether a sample that is cut, at the total or by an interruption, is worth as much as a
    /// whole one.
    pub takes_cut: bool,
    /// Seed, from which each sample is drawn with its number.
    pub seed: u64,
}

/// Generates samples that do not repeat earlier ones. `go_on` gets the number of tokens after each
/// pass; if it returns false, cut samples are returned, or `None` where they are not taken.
pub(crate) fn write(
    loaded: &mut Loaded,
    settings: &WriterSettings<'_>,
    seen: &mut SeenSamples,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Vec<Sample>>> {
    let Loaded { model, language, .. } = loaded;
    let end_tokens = language.answer_end_tokens();
    let (mut samples, mut written, mut started) = (Vec::new(), 0, 0);
    let mut open_samples: Vec<OpenSample> = Vec::new();
    let root = DraftTree::new();
    let count = |sample: &Sample| match settings.takes_cut {
        true => sample.taught.iter().filter(|taught| **taught).count(),
        false => sample.tokens.len(),
    };
    loop {
        while open_samples.len() < settings.batch_size && written < settings.tokens {
            let seed = settings.seed.wrapping_mul(1 << 32).wrapping_add(started);
            open_samples.push(OpenSample::open(model, language, settings.sample, seed)?);
            started += 1;
        }
        if open_samples.is_empty() {
            return Ok(Some(samples));
        }
        let open: usize = open_samples.iter().map(|one| count(&one.sample)).sum();
        let is_stopped = !go_on(written + open);
        if is_stopped || (settings.takes_cut && written + open >= settings.tokens) {
            for open_sample in open_samples {
                let sample = open_sample.close(model)?;
                if is_kept(&sample, seen) {
                    samples.push(sample);
                }
            }
            return Ok((settings.takes_cut || !is_stopped).then_some(samples));
        }
        let batch: Vec<_> =
            open_samples.iter().map(|open_sample| (open_sample.sequence, &root)).collect();
        model.score(&batch)?;
        let shared_model = &*model;
        let draw = |spare: &mut Option<Distribution>, open_sample: &mut OpenSample| {
            open_sample.draw(shared_model, spare)
        };
        let drawn: Vec<DrawnToken> =
            open_samples.par_iter_mut().map_init(|| None, draw).collect::<Result<_>>()?;
        let mut remaining = Vec::with_capacity(open_samples.len());
        for (mut open_sample, drawn) in open_samples.into_iter().zip(drawn) {
            if open_sample.push(drawn, model, language, settings.sample, &end_tokens)? {
                remaining.push(open_sample);
                continue;
            }
            let sample = open_sample.close(model)?;
            if is_kept(&sample, seen) {
                written += count(&sample);
                samples.push(sample);
            }
        }
        open_samples = remaining;
    }
}

fn is_kept(sample: &Sample, seen: &mut SeenSamples) -> bool {
    sample.tokens.len() >= MIN_SAMPLE_TOKENS && seen.insert_if_new(&sample.tokens)
}
