//! The target that a draft head is loaded for.

use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::{HiddenState, HiddenStates, Model, ModelInfo, capture_hidden_states};

use crate::error::Result;
use crate::linear::Matrix;
use crate::load::EmbeddingAndOutput;
use crate::model::TransformerModel;
use crate::precision::Precision;
use crate::transformer::Transformer;

/// The target of a draft head, with the tensors that the draft head may share with it.
pub enum HeadTarget<'a> {
    /// A target on the CPU kernels.
    Native(&'a mut TransformerModel),
    /// A target on another backend, with the embedding and the output matrix of its file.
    Other(&'a mut dyn Model, &'a EmbeddingAndOutput),
}

impl<'a> From<&'a mut TransformerModel> for HeadTarget<'a> {
    fn from(model: &'a mut TransformerModel) -> Self {
        Self::Native(model)
    }
}

impl HeadTarget<'_> {
    /// Returns the weights that the draft head may share.
    pub(super) fn transformer(&self) -> &Transformer {
        match self {
            Self::Native(model) => model.transformer(),
            Self::Other(_, shared) => shared.transformer(),
        }
    }

    pub(super) fn info(&self) -> &ModelInfo {
        match self {
            Self::Native(model) => model.info(),
            Self::Other(model, _) => model.info(),
        }
    }

    pub(super) fn capture(&mut self, states: &[HiddenState]) -> Result<()> {
        match self {
            Self::Native(model) => model.capture_hidden_states(states)?,
            Self::Other(model, _) => capture_hidden_states(*model, states)?,
        }
        Ok(())
    }
}

/// Copies rows of the target's output matrix, quantised if that takes fewer bytes.
pub(super) fn target_output_rows(
    target: &Transformer,
    ids: &[Token],
    precision: Precision,
) -> Result<Arc<Matrix>> {
    let rows = target.lm_head().select(ids)?;
    let rounded = rows.rounded(precision, None)?;
    Ok(Arc::new(if rounded.bytes() < rows.bytes() { rounded } else { rows }))
}
