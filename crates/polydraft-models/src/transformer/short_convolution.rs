//! Short-convolution layer: a convolution of every channel between two gates.
//!
//! Source: Liquid AI 2025 (LFM2): with b, c and x from one product, the output is projection · (c ·
//! convolution(b · x)).

use std::sync::Arc;

use polydraft_kernels::Rows;

use super::pass::SequenceTokens;
use super::recurrent::Convolution;
use crate::error::Result;
use crate::linear::Linear;

/// Short-convolution layer.
#[derive(Debug)]
pub(crate) struct ShortConvolution {
    /// Projections to b, c and x, stacked.
    pub input: Linear,
    pub convolution: Arc<Convolution>,
    pub output: Linear,
}

impl ShortConvolution {
    /// Computes the tokens of all sequences; `layer` counts the recurrent layers only.
    pub fn forward(&self, layer: usize, x: &Rows, batch: &mut [SequenceTokens]) -> Result<Rows> {
        let (width, mixed) = (x.width(), self.input.forward(x)?);
        let rows = mixed.numbers().chunks_exact(3 * width);
        let mut gated = Vec::with_capacity(x.numbers().len());
        for row in rows.clone() {
            gated.extend(row[..width].iter().zip(&row[2 * width..]).map(|(b, x)| b * x));
        }
        let mut convolved = self.convolution.forward(layer, &gated, width, batch);
        for (convolved, row) in convolved.numbers_mut().chunks_exact_mut(width).zip(rows) {
            convolved.iter_mut().zip(&row[width..2 * width]).for_each(|(x, c)| *x *= c);
        }
        self.output.forward(&convolved)
    }
}
