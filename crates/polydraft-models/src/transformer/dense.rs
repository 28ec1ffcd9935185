//! A feed-forward block.

use polydraft_kernels::Rows;

use super::make::Make;
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
    /// The same with other matrices, by their names.
    pub fn with(&self, [into, out]: [&str; 2], make: &Make) -> Result<Self> {
        Ok(Self { into: (make.linear)(into, &self.into)?, out: (make.linear)(out, &self.out)? })
    }
}
