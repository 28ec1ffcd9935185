//! A layer that mixes a few neighbouring tokens: a convolution of every channel between two gates.
//!
//! Source: Liquid AI 2025 (LFM2): with b, c and x of one product, c · convolution(b · x), then the
//! output's product.

use std::sync::Arc;

use polydraft_kernels::Rows;

use super::pass::Part;
use super::recurrent::Convolution;
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct ShortConvolution {
    /// b, c and x stacked.
    pub into: Linear,
    pub convolution: Arc<Convolution>,
    pub output: Linear,
}

impl ShortConvolution {
    /// Of the tokens of all parts; `layer` is which of the recurrent ones it is.
    pub fn forward(&self, layer: usize, x: &Rows, parts: &mut [Part]) -> Result<Rows> {
        let (width, mixed) = (x.width(), self.into.forward(x)?);
        let rows = mixed.numbers().chunks_exact(3 * width);
        let mut given = Vec::with_capacity(x.numbers().len());
        for row in rows.clone() {
            given.extend(row[..width].iter().zip(&row[2 * width..]).map(|(b, x)| b * x));
        }
        let mut found = self.convolution.forward(layer, &given, width, parts);
        for (found, row) in found.numbers_mut().chunks_exact_mut(width).zip(rows) {
            found.iter_mut().zip(&row[width..2 * width]).for_each(|(x, c)| *x *= c);
        }
        self.output.forward(&found)
    }
}
