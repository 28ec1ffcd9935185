//! Experts beside a feed-forward block.
//!
//! Source: Gemma Team 2026 (Gemma 4): of a token x of the residual stream, whose norm the block
//! reads, norm₁(block) + norm₂(experts of norm(x)); the router reads x with a norm of its own.

use polydraft_kernels::{Norm, Rows};

use super::dense::Dense;
use super::experts::Experts;
use crate::config::FeedForward;
use crate::error::Result;

#[derive(Debug)]
pub(crate) struct Beside {
    pub dense: Dense,
    /// After it.
    pub dense_norm: Norm,
    /// Before the router.
    pub router_norm: Norm,
    /// Before the experts and after them.
    pub norms: [Norm; 2],
    pub experts: Experts,
}

impl Beside {
    /// Of the residual stream and of what its norm made of it.
    pub fn forward(&self, config: FeedForward, residual: &Rows, x: &Rows) -> Result<Rows> {
        let [before, after] = &self.norms;
        let dense = self.dense_norm.forward(&self.dense.forward(config, x)?)?;
        let scored = self.router_norm.forward(residual)?;
        let found = self.experts.routed(config, &scored, &before.forward(residual)?)?;
        Ok(dense.plus(&after.forward(&found)?)?)
    }
}
