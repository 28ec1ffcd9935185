//! Short causal convolutions: each channel has its own weights over the last few tokens.

use pulp::{Arch, Simd, WithSimd};

use crate::pool;
use crate::rows::Rows;

/// Minimum number of multiplications per thread.
const MIN_WORK: usize = 1 << 15;

/// Convolves each window with `weights`: Σ w_j · x_j per channel, plus the bias.
///
/// A window holds the input rows of the last tokens up to and including the output's own.
/// `weights` are `[tokens, channels]`; the result is `[windows, channels]`.
///
/// # Panics
/// Windows with another number of rows than the weights, or rows of another width.
pub fn convolve(
    windows: &[Vec<&[f32]>],
    weights: &[f32],
    bias: Option<&[f32]>,
    channels: usize,
) -> Rows {
    let mut out = vec![0f32; windows.len() * channels];
    let rows = out.chunks_exact_mut(channels.max(1)).zip(windows);
    let arch = Arch::new();
    pool::parallel_for_each(
        rows.collect(),
        MIN_WORK / weights.len().max(1) + 1,
        |(out, window)| {
            assert_eq!(window.len() * channels, weights.len(), "rows of a window");
            if let Some(bias) = bias {
                out.copy_from_slice(bias);
            }
            for (x, weights) in window.iter().zip(weights.chunks_exact(channels)) {
                assert_eq!(x.len(), channels, "channels");
                arch.dispatch(Products { out, x, weights });
            }
        },
    );
    Rows::new(out, channels)
}

/// Adds the products of one input row to the output.
struct Products<'a> {
    out: &'a mut [f32],
    x: &'a [f32],
    weights: &'a [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { out, x, weights } = self;
        let (outs, out_rest) = S::as_mut_simd_f32s(out);
        let (xs, x_rest) = S::as_simd_f32s(x);
        let (ws, w_rest) = S::as_simd_f32s(weights);
        for ((out, x), w) in outs.iter_mut().zip(xs).zip(ws) {
            *out = simd.mul_add_f32s(*x, *w, *out);
        }
        for ((out, x), w) in out_rest.iter_mut().zip(x_rest).zip(w_rest) {
            *out = x.mul_add(*w, *out);
        }
    }
}
