//! The input that every layer has of a token, besides what the layers before it leave (per-layer
//! embeddings).
//!
//! Source: Gemma Team 2025 (Gemma 3n) and 2026 (Gemma 4). Of a token with row t of the table and
//! embedding e, the layers' inputs are, side by side, (t · √width + norm(from·e / √hidden)) / √2; a
//! layer adds norm(back · (activation(gate·x) · input)) to its output x.
//! Complexity: the table may be half of a model, and a pass reads a row of it for each token.

use std::f64::consts::FRAC_1_SQRT_2;
use std::sync::Arc;

use polydraft_kernels::{Activation, Norm, Rows};

use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// Makes the inputs of all layers.
#[derive(Debug)]
pub(crate) struct PerLayer {
    /// `[tokens, layers · width]`, shared with quantised self-drafts.
    pub table: Arc<Matrix>,
    /// `[layers · width, hidden]`
    pub from: Linear,
    /// Of a layer's part.
    pub norm: Norm,
    pub width: usize,
}

impl PerLayer {
    /// `[tokens, layers · width]` of tokens and their embeddings `[tokens, hidden]`.
    pub fn forward(&self, tokens: &[u32], x: &Rows) -> Result<Rows> {
        let scale = (x.width() as f64).powf(-0.5);
        let mut found = self.from.forward(x)?.scaled(scale);
        self.norm.apply(found.numbers_mut())?;
        let rows = self.table.rows(tokens)?.scaled((self.width as f64).sqrt());
        Ok(found.plus(&rows)?.scaled(FRAC_1_SQRT_2))
    }

    /// Of the inputs of all layers those of one.
    pub fn of_layer(&self, all: &Rows, layer: usize) -> Rows {
        all.columns(layer * self.width, self.width)
    }
}

/// What a layer does with its own.
#[derive(Debug)]
pub(crate) struct PerLayerBlock {
    /// `[width, hidden]`
    pub gate: Linear,
    /// `[hidden, width]`
    pub back: Linear,
    pub norm: Norm,
}

impl PerLayerBlock {
    pub fn forward(&self, activation: Activation, x: Rows, input: &Rows) -> Result<Rows> {
        let both = Rows::beside(&[self.gate.forward(&x)?, input.clone()])?;
        let inner = activation.forward(&both, input.width(), true);
        Ok(x.plus(&self.norm.forward(&self.back.forward(&inner)?)?)?)
    }
}
