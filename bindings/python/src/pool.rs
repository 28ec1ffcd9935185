//! Distributions whose memory is used again: one over a large vocabulary takes longer to allocate
//! than to fill.

use std::sync::Mutex;

use polydraft::{Distribution, Sampling};

use crate::errors::lock;

/// Maximum number of buffers: enough for two steps with large trees.
const MOST: usize = 128;

static SPARE: Mutex<Vec<Distribution>> = Mutex::new(Vec::new());

/// The distribution of these logits.
pub fn probs(logits: &[f32], sampling: &Sampling) -> polydraft::Result<Distribution> {
    let spare = lock(&SPARE).pop();
    match spare {
        None => Distribution::from_logits(logits, sampling),
        Some(mut probs) => probs.set_from_logits(logits, sampling).map(|()| probs),
    }
}

/// Makes the distribution of a draft's logits.
pub fn drafted(logits: &[f32], sampling: &Sampling) -> polydraft::Result<Distribution> {
    let spare = lock(&SPARE).pop();
    Distribution::for_draft(spare, logits.len(), None, logits, sampling)
}

/// Takes distributions that nobody needs any more.
pub fn give_back(distributions: impl IntoIterator<Item = Distribution>) {
    let mut spare = lock(&SPARE);
    let capacity = MOST.saturating_sub(spare.len());
    spare.extend(distributions.into_iter().take(capacity));
}
