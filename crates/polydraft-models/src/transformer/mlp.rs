//! The feed-forward block of a layer: one for all tokens, or experts.

use polydraft_kernels::Rows;

use super::experts::Experts;
use crate::config::FeedForward;
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) enum Mlp {
    Dense(Dense),
    Experts(Experts),
}

impl Mlp {
    pub fn forward(&self, config: FeedForward, x: &Rows) -> Result<Rows> {
        match self {
            Self::Dense(dense) => dense.forward(config, x),
            Self::Experts(experts) => experts.forward(config, x),
        }
    }
}

/// A feed-forward block.
#[derive(Debug)]
pub(crate) struct Dense {
    /// Gate and up stacked, where there is a gate.
    pub into: Linear,
    pub out: Linear,
}

impl Dense {
    pub fn forward(
        &self,
        FeedForward { activation, gated }: FeedForward,
        x: &Rows,
    ) -> Result<Rows> {
        let inner = self.into.forward(x)?;
        let width = if gated { inner.width() / 2 } else { inner.width() };
        self.out.forward(&activation.forward(&inner, width, gated))
    }
}
