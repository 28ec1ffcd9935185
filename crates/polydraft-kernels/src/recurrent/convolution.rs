//! A convolution of every channel with its own few weights, over the last tokens of a path.

use pulp::{Arch, Simd, WithSimd};

use crate::pool;
use crate::rows::Rows;

/// Channels times weights that are worth another thread.
const GRAIN: usize = 1 << 15;

/// Of each of `windows`, which are the last tokens' rows up to the token's own, Σ w_j · x_j by
/// channel, plus the bias: `[windows, channels]`. `weights` are `[tokens, channels]`.
///
/// # Panics
/// Windows of another number of rows than the weights', or rows of another width.
pub fn convolve(
    windows: &[Vec<&[f32]>],
    weights: &[f32],
    bias: Option<&[f32]>,
    channels: usize,
) -> Rows {
    let mut out = vec![0f32; windows.len() * channels];
    let rows = out.chunks_exact_mut(channels.max(1)).zip(windows);
    let arch = Arch::new();
    pool::each(rows.collect(), GRAIN / weights.len().max(1) + 1, |(out, window)| {
        assert_eq!(window.len() * channels, weights.len(), "rows of a window");
        if let Some(bias) = bias {
            out.copy_from_slice(bias);
        }
        for (x, weights) in window.iter().zip(weights.chunks_exact(channels)) {
            assert_eq!(x.len(), channels, "channels");
            arch.dispatch(Products { out, x, weights });
        }
    });
    Rows::new(out, channels)
}

/// Adds the products of one row.
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
