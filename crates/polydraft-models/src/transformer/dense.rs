//! A feed-forward block.

use polydraft_kernels::Rows;

use super::matrix_mapper::MatrixMapper;
use crate::config::FeedForward;
use crate::error::Result;
use crate::linear::Linear;

/// A feed-forward block.
#[derive(Debug)]
pub(crate) struct Dense {
    /// Gate and up projections, stacked; up alone in blocks without a gate.
    pub gate_up: Linear,
    /// Down projection.
    pub down: Linear,
}

impl Dense {
    /// Output of the block for rows `x`.
    pub fn forward(
        &self,
        FeedForward { activation, gated }: FeedForward,
        x: &Rows,
    ) -> Result<Rows> {
        let inner = self.gate_up.forward(x)?;
        let width = if gated { inner.width() / 2 } else { inner.width() };
        self.down.forward(&activation.forward(&inner, width, gated))
    }

    /// Copy with mapped matrices, which have these names.
    pub fn map_matrices(&self, [gate_up, down]: [&str; 2], mapper: &MatrixMapper) -> Result<Self> {
        let gate_up = (mapper.linear)(gate_up, &self.gate_up)?;
        Ok(Self { gate_up, down: (mapper.linear)(down, &self.down)? })
    }
}
