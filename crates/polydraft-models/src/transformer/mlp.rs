//! The feed-forward block of a layer: one for all tokens, or experts.

use polydraft_kernels::Rows;

use super::dense::Dense;
use super::experts::Experts;
use crate::config::FeedForward;
use crate::error::Result;

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
