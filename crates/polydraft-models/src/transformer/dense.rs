//! A feed-forward block.

use polydraft_kernels::Rows;

use crate::config::FeedForward;
use crate::error::Result;
use crate::linear::Linear;

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
