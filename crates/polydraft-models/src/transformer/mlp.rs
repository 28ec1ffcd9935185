//! The feed-forward block of a layer: one for all tokens, or experts, or both.

use polydraft_kernels::Rows;

use super::beside::Beside;
use super::dense::Dense;
use super::experts::Experts;
use super::make::Make;
use crate::config::FeedForward;
use crate::error::Result;

#[derive(Debug)]
pub(crate) enum Mlp {
    Dense(Dense),
    Experts(Box<Experts>),
    Beside(Box<Beside>),
}

impl Mlp {
    /// Of the residual stream, and of what the norm before the block made of it.
    pub fn forward(&self, config: FeedForward, residual: &Rows, x: &Rows) -> Result<Rows> {
        match self {
            Self::Dense(dense) => dense.forward(config, x),
            Self::Experts(experts) => experts.forward(config, x),
            Self::Beside(both) => both.forward(config, residual, x),
        }
    }

    /// What computes every token.
    pub fn dense(&self) -> Option<&Dense> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::Experts(_) => None,
            Self::Beside(both) => Some(&both.dense),
        }
    }

    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Self::Dense(_) => None,
            Self::Experts(experts) => Some(experts),
            Self::Beside(both) => Some(&both.experts),
        }
    }

    /// Both, to be changed.
    pub fn parts_mut(&mut self) -> (Option<&mut Dense>, Option<&mut Experts>) {
        match self {
            Self::Dense(dense) => (Some(dense), None),
            Self::Experts(experts) => (None, Some(experts)),
            Self::Beside(both) => (Some(&mut both.dense), Some(&mut both.experts)),
        }
    }

    /// The same with other matrices.
    pub fn with(&self, make: &Make) -> Result<Self> {
        let dense = |of: &Dense| of.with(["mlp_in", "mlp_out"], make);
        Ok(match self {
            Self::Dense(of) => Self::Dense(dense(of)?),
            Self::Experts(of) => Self::Experts(Box::new(of.with(make)?)),
            Self::Beside(of) => Self::Beside(Box::new(Beside {
                dense: dense(&of.dense)?,
                dense_norm: of.dense_norm.clone(),
                router_norm: of.router_norm.clone(),
                norms: of.norms.clone(),
                experts: of.experts.with(make)?,
            })),
        })
    }
}
