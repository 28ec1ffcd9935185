//! Many samples written at once: a pass over the weights gives a token for each.

use anyhow::Result;
use polydraft::{Distribution, DraftTree};
use polydraft_engine::Sequences;
use polydraft_models::Loaded;
use rayon::prelude::*;

use crate::repeats::Said;
use crate::shard::Lesson;
use crate::talk::{Drawn, Manner, Talk};

/// Tokens of a text at least: there is little to learn from a shorter one.
pub(crate) const SHORTEST: usize = 16;

/// How samples are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writing<'a> {
    pub manner: Manner<'a>,
    /// Samples at once.
    pub together: usize,
    /// Tokens in all, about.
    pub tokens: usize,
    /// Each text is drawn from this and its number.
    pub seed: u64,
}

/// Writes samples that say what was not said before. After each token of all of them `go_on` is
/// told how many tokens there are; if it says no, they are lost.
pub(crate) fn write(
    loaded: &mut Loaded,
    writing: &Writing<'_>,
    said: &mut Said,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<Vec<Lesson>>> {
    let Loaded { model, language, .. } = loaded;
    let ends = language.answer_end_tokens();
    let (mut lessons, mut written, mut begun) = (Vec::new(), 0, 0);
    let mut talks: Vec<Talk> = Vec::new();
    let root = DraftTree::new();
    loop {
        while talks.len() < writing.together && written < writing.tokens {
            let seed = writing.seed.wrapping_mul(1 << 32).wrapping_add(begun);
            talks.push(Talk::open(model, language, writing.manner, seed)?);
            begun += 1;
        }
        if talks.is_empty() {
            return Ok(Some(lessons));
        }
        let open: usize = talks.iter().map(|talk| talk.lesson.tokens.len()).sum();
        if !go_on(written + open) {
            talks.into_iter().try_for_each(|talk| talk.close(model).map(drop))?;
            return Ok(None);
        }
        let batch: Vec<_> = talks.iter().map(|talk| (talk.sequence, &root)).collect();
        model.score(&batch)?;
        let seen = &*model;
        let draw = |spare: &mut Option<Distribution>, talk: &mut Talk| talk.draw(seen, spare);
        let drawn: Vec<Drawn> =
            talks.par_iter_mut().map_init(|| None, draw).collect::<Result<_>>()?;
        let mut going = Vec::with_capacity(talks.len());
        for (mut talk, drawn) in talks.into_iter().zip(drawn) {
            if talk.take(drawn, model, language, writing.manner, &ends)? {
                going.push(talk);
                continue;
            }
            let lesson = talk.close(model)?;
            if lesson.tokens.len() >= SHORTEST && said.is_new(&lesson.tokens) {
                written += lesson.tokens.len();
                lessons.push(lesson);
            }
        }
        talks = going;
    }
}
