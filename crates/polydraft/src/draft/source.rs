//! The distributions that the draws at one node came from.

use crate::{Distribution, Token};

/// One distribution for all draws of a node, or one per draw.
#[derive(Debug)]
pub(super) enum Source {
    /// All draws come from the same distribution.
    One(Distribution),
    /// Each draw comes from its own distribution.
    Distinct(DistinctDraws),
}

/// Draws at one node, one per draft whose path reaches it.
#[derive(Debug)]
pub(super) struct DistinctDraws {
    /// The numbers of the drafts, ascending; `probs` and `tokens` are in the same order.
    pub drafts: Vec<usize>,
    pub probs: Vec<Distribution>,
    pub tokens: Vec<Token>,
}

impl Source {
    /// The distributions: one, or one per draw.
    pub fn probs(&self) -> &[Distribution] {
        match self {
            Self::One(probs) => std::slice::from_ref(probs),
            Self::Distinct(draws) => &draws.probs,
        }
    }

    /// Appends the distributions to `spare`, for reuse of their memory.
    pub fn recycle(self, spare: &mut Vec<Distribution>) {
        match self {
            Self::One(probs) => spare.push(probs),
            Self::Distinct(draws) => spare.extend(draws.probs),
        }
    }
}
