//! Dense feed-forward block with experts in parallel.
//!
//! Source: Gemma Team 2026 (Gemma 4): the output for a token x of the residual stream, with
//! norm₀(x) as the block's input, is norm₁(block(norm₀(x))) + norm₂(experts(norm₃(x))); the router
//! reads x with a norm of its own.

use polydraft_kernels::{Norm, Rows};

use super::dense::Dense;
use super::experts::Experts;
use crate::config::FeedForward;
use crate::error::Result;

/// Dense block and experts whose outputs are added.
#[derive(Debug)]
pub(crate) struct DenseAndExperts {
    pub dense: Dense,
    /// Norm after the dense block.
    pub dense_norm: Norm,
    /// Norm before the router.
    pub router_norm: Norm,
    /// Norms before and after the experts.
    pub norms: [Norm; 2],
    pub experts: Experts,
}

impl DenseAndExperts {
    /// Output of both, given the residual stream and its normed form `x`.
    pub fn forward(&self, config: FeedForward, residual: &Rows, x: &Rows) -> Result<Rows> {
        let [before, after] = &self.norms;
        let dense = self.dense_norm.forward(&self.dense.forward(config, x)?)?;
        let scored = self.router_norm.forward(residual)?;
        let found = self.experts.forward_scored(config, &scored, &before.forward(residual)?)?;
        Ok(dense.plus(&after.forward(&found)?)?)
    }
}
