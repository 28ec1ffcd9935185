//! Per-layer embeddings: an input that every layer has for each token, besides the output of the
//! layers before it.
//!
//! Source: Gemma Team 2025 (Gemma 3n) and 2026 (Gemma 4). For a token with row t of the table and
//! embedding e, the concatenated inputs of all layers are (t · √width + norm(projection·e /
//! √hidden)) / √2; a layer adds norm(projection · (activation(gate·x) · input)) to its output x.
//! Complexity: the table may be half of a model, and a pass reads a row of it for each token.

use std::f64::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use polydraft_kernels::{Activation, Norm, Rows};

use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// Table and projection that make the inputs of all layers.
#[derive(Debug)]
pub(crate) struct PerLayer {
    /// Table, `[tokens, layers · width]`, shared with quantised self-drafts.
    pub table: Arc<Matrix>,
    /// Projection of the embedding, `[layers · width, hidden]`.
    pub projection: Linear,
    /// Norm of one layer's projected input.
    pub norm: Norm,
    /// Numbers per token and layer.
    pub width: usize,
}

impl PerLayer {
    /// Inputs of all layers, `[tokens, layers · width]`, for tokens and their embeddings `x
    /// [tokens, hidden]`.
    pub fn forward(&self, tokens: &[u32], x: &Rows) -> Result<Rows> {
        let scale = (x.width() as f64).powf(-0.5);
        let mut projected = self.projection.forward(x)?.scaled(scale);
        self.norm.apply(projected.numbers_mut())?;
        let rows = self.table.rows(tokens)?.scaled((self.width as f64).sqrt());
        Ok(projected.plus(&rows)?.scaled(FRAC_1_SQRT_2))
    }

    /// Input of one layer, `[tokens, width]`, given the inputs of all layers.
    pub fn layer_input(&self, all: &Rows, layer: usize) -> Rows {
        all.columns(layer * self.width, self.width)
    }
}

/// Block with which a layer adds its input.
#[derive(Debug)]
pub(crate) struct PerLayerBlock {
    /// Gate, `[width, hidden]`.
    pub gate: Linear,
    /// Projection to the residual stream, `[hidden, width]`.
    pub projection: Linear,
    pub norm: Norm,
}

impl PerLayerBlock {
    /// Adds `input [tokens, width]` to a layer's output `x`.
    pub fn forward(&self, activation: Activation, x: Rows, input: &Rows) -> Result<Rows> {
        let both = Rows::concat_columns(&[self.gate.forward(&x)?, input.clone()])?;
        let inner = activation.forward(&both, input.width(), true);
        Ok(x.plus(&self.norm.forward(&self.projection.forward(&inner)?)?)?)
    }
}
