//! What the draws at one node came from.

use crate::{Distribution, Token};

/// One distribution, or one for each draw.
#[derive(Debug)]
pub(super) enum Source {
    /// All from the same distribution.
    One(Distribution),
    /// Each from its own.
    Each(Each),
}

/// Draws at one node, one for each draft whose path came there.
#[derive(Debug)]
pub(super) struct Each {
    /// The numbers of the drafts, ascending, with the distribution and the token of each.
    pub drafts: Vec<usize>,
    pub probs: Vec<Distribution>,
    pub tokens: Vec<Token>,
}

impl Source {
    /// One, or one for each draw.
    pub fn probs(&self) -> &[Distribution] {
        match self {
            Self::One(probs) => std::slice::from_ref(probs),
            Self::Each(each) => &each.probs,
        }
    }

    /// Adds the distributions to `spare`.
    pub fn recycle(self, spare: &mut Vec<Distribution>) {
        match self {
            Self::One(probs) => spare.push(probs),
            Self::Each(each) => spare.extend(each.probs),
        }
    }
}
