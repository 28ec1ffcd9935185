//! Parts shared by all kinds of recurrent layers: the convolution, and passing their inputs to the
//! caches.

use polydraft_kernels::{Rows, convolve};

use super::pass::SequenceTokens;

/// Causal convolution of every channel over the last tokens.
#[derive(Debug)]
pub(crate) struct Convolution {
    /// Weights, `[kernel, channels]`.
    pub weights: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

impl Convolution {
    /// Convolves the rows of the tokens of all sequences, and stores the rows in the caches.
    pub fn forward(
        &self,
        layer: usize,
        rows: &[f32],
        channels: usize,
        batch: &mut [SequenceTokens],
    ) -> Rows {
        let mut rest = rows;
        for sequence in &mut *batch {
            let rows;
            (rows, rest) = rest.split_at(sequence.tokens.len() * channels);
            sequence.cache.push_channels(layer, rows);
        }
        let windows =
            batch.iter().flat_map(|sequence| sequence.cache.windows(layer)).collect::<Vec<_>>();
        convolve(&windows, &self.weights, self.bias.as_deref(), channels)
    }
}

/// Stores the inputs of a layer's recurrence in the caches of all sequences, `width` numbers per
/// token.
pub(super) fn store_inputs(layer: usize, rows: &[f32], width: usize, batch: &mut [SequenceTokens]) {
    let mut rest = rows;
    for sequence in batch {
        let rows;
        (rows, rest) = rest.split_at(sequence.tokens.len() * width);
        sequence.cache.push_inputs(layer, rows);
    }
}

/// ln(1 + eˣ)
pub(super) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
