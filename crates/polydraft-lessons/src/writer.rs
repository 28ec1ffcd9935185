//! Many samples written at once: a pass over the weights gives a token for each.

use anyhow::Result;
use polydraft::{Distribution, DraftTree};
use polydraft_engine::Sequences;
use polydraft_models::Loaded;
use rayon::prelude::*;

use crate::repeats::SeenSamples;
use crate::shard::Sample;
use crate::talk::{DrawnToken, OpenSample, SampleSettings};

/// Tokens of a text at least: there is little to learn from a shorter one.
pub(crate) const SHORTEST: usize = 16;

/// How samples are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterSettings<'a> {
    pub settings: SampleSettings<'a>,
    /// Samples at once.
    pub batch_size: usize,
    /// Tokens in all, about.
    pub tokens: usize,
    /// Each text is drawn from this and its number.
    pub seed: u64,
}

/// Writes samples that say what was not said before. After each token of all of them `go_on` is
/// told how many tokens there are; if it says no, they are lost.
pub(crate) fn write(
    loaded: &mut Loaded,
    writing: &WriterSettings<'_>,
    said: &mut SeenSamples,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Vec<Sample>>> {
    let Loaded { model, language, .. } = loaded;
    let ends = language.answer_end_tokens();
    let (mut samples, mut written, mut begun) = (Vec::new(), 0, 0);
    let mut talks: Vec<OpenSample> = Vec::new();
    let root = DraftTree::new();
    loop {
        while talks.len() < writing.batch_size && written < writing.tokens {
            let seed = writing.seed.wrapping_mul(1 << 32).wrapping_add(begun);
            talks.push(OpenSample::open(model, language, writing.settings, seed)?);
            begun += 1;
        }
        if talks.is_empty() {
            return Ok(Some(samples));
        }
        let open: usize = talks.iter().map(|talk| talk.sample.tokens.len()).sum();
        if !go_on(written + open) {
            talks.into_iter().try_for_each(|talk| talk.close(model).map(drop))?;
            return Ok(None);
        }
        let batch: Vec<_> = talks.iter().map(|talk| (talk.sequence, &root)).collect();
        model.score(&batch)?;
        let seen = &*model;
        let draw = |spare: &mut Option<Distribution>, talk: &mut OpenSample| talk.draw(seen, spare);
        let drawn: Vec<DrawnToken> =
            talks.par_iter_mut().map_init(|| None, draw).collect::<Result<_>>()?;
        let mut going = Vec::with_capacity(talks.len());
        for (mut talk, drawn) in talks.into_iter().zip(drawn) {
            if talk.take(drawn, model, language, writing.settings, &ends)? {
                going.push(talk);
                continue;
            }
            let sample = talk.close(model)?;
            if sample.tokens.len() >= SHORTEST && said.is_new(&sample.tokens) {
                written += sample.tokens.len();
                lessons.push(sample);
            }
        }
        talks = going;
    }
}
