//! Feed-forward block of a layer: dense, experts, or both.

use polydraft_kernels::Rows;

use super::dense::Dense;
use super::dense_and_experts::DenseAndExperts;
use super::experts::Experts;
use super::matrix_mapper::MatrixMapper;
use crate::config::FeedForward;
use crate::error::Result;

/// Feed-forward block of a layer.
#[derive(Debug)]
pub(crate) enum Mlp {
    Dense(Dense),
    Experts(Box<Experts>),
    DenseAndExperts(Box<DenseAndExperts>),
}

impl Mlp {
    /// Output of the block, given the residual stream and its normed form `x`.
    pub fn forward(&self, config: FeedForward, residual: &Rows, x: &Rows) -> Result<Rows> {
        match self {
            Self::Dense(dense) => dense.forward(config, x),
            Self::Experts(experts) => experts.forward(config, x),
            Self::DenseAndExperts(both) => both.forward(config, residual, x),
        }
    }

    /// Dense block, if the layer has one.
    pub fn dense(&self) -> Option<&Dense> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::Experts(_) => None,
            Self::DenseAndExperts(both) => Some(&both.dense),
        }
    }

    /// Experts, if the layer has them.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Self::Dense(_) => None,
            Self::Experts(experts) => Some(experts),
            Self::DenseAndExperts(both) => Some(&both.experts),
        }
    }

    /// Mutable access to the dense block and to the experts.
    pub fn blocks_mut(&mut self) -> (Option<&mut Dense>, Option<&mut Experts>) {
        match self {
            Self::Dense(dense) => (Some(dense), None),
            Self::Experts(experts) => (None, Some(experts)),
            Self::DenseAndExperts(both) => (Some(&mut both.dense), Some(&mut both.experts)),
        }
    }

    /// Copy with mapped matrices.
    pub fn map_matrices(&self, mapper: &MatrixMapper) -> Result<Self> {
        let map_dense = |dense: &Dense| dense.map_matrices(["mlp_in", "mlp_out"], mapper);
        Ok(match self {
            Self::Dense(dense) => Self::Dense(map_dense(dense)?),
            Self::Experts(experts) => Self::Experts(Box::new(experts.map_matrices(mapper)?)),
            Self::DenseAndExperts(both) => Self::DenseAndExperts(Box::new(DenseAndExperts {
                dense: map_dense(&both.dense)?,
                dense_norm: both.dense_norm.clone(),
                router_norm: both.router_norm.clone(),
                norms: both.norms.clone(),
                experts: both.experts.map_matrices(mapper)?,
            })),
        })
    }
}
