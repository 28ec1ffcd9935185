//! What recurrent layers of all kinds do: their convolution, and the way to the caches.

use polydraft_kernels::{Rows, convolve};

use super::pass::Part;

/// A convolution of every channel over the last tokens.
#[derive(Debug)]
pub(crate) struct Convolution {
    /// `[kernel, channels]`
    pub weights: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

impl Convolution {
    /// Of the tokens of all parts, whose rows the caches take.
    pub fn forward(&self, layer: usize, rows: &[f32], channels: usize, parts: &mut [Part]) -> Rows {
        let mut rest = rows;
        for part in &mut *parts {
            let own;
            (own, rest) = rest.split_at(part.tokens.len() * channels);
            part.cache.take_channels(layer, own);
        }
        let windows = parts.iter().flat_map(|part| part.cache.windows(layer)).collect::<Vec<_>>();
        convolve(&windows, &self.weights, self.bias.as_deref(), channels)
    }
}

/// Gives all parts' caches what changes the memory of a layer, `width` numbers a token.
pub(super) fn take_inputs(layer: usize, rows: &[f32], width: usize, parts: &mut [Part]) {
    let mut rest = rows;
    for part in parts {
        let own;
        (own, rest) = rest.split_at(part.tokens.len() * width);
        part.cache.take_inputs(layer, own);
    }
}

/// ln(1 + eˣ)
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
