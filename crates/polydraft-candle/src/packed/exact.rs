//! Products in f32 with weights of any width: every number of the weights is used exactly as it is held.
//!
//! Problem: y = x · wᵀ for x `[rows, in]` in f32 and w `[out, in]`, where reading w is the cost.
//! Method: ours. A word of a tile holds one to four neighbouring columns of a row. Its numbers are widened to f32 in
//! registers, exactly, and multiplied with one number of x for all the rows of the tile at once: no sum across a vector,
//! one stream through memory. A row's result does not depend on the other rows of x, so that trees of different shapes
//! give a node the same logits.
//! Complexity: `rows · out · in` multiply-adds, `rows / 8 · out · in` conversions, one read of w from memory.

#![allow(unsafe_code)]

mod planes;
mod words;

use pulp::{Arch, Simd, WithSimd};

use super::output::Output;
use super::pool;
use super::tiles::{TILE, Tiles};
pub(super) use planes::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};
pub(super) use words::{Bf16, F16, F32, Words};

/// Rows of x at once.
const BLOCK: usize = 8;
/// Columns of x are padded to a multiple of this.
pub(super) const STEP: usize = 4;
/// Multiply-adds that are worth another thread.
const GRAIN: usize = 1 << 16;
/// Bytes of x that are gone through for one tile: they should stay in a core's cache.
const CACHED: usize = 1 << 19;

/// Four columns of N rows of x.
pub(super) type Step<const N: usize> = [[f32; N]; STEP];

/// y `[rows, out]` for x `[rows, in]`.
pub(super) fn product<W: Words>(w: &Tiles<W>, x: &[f32], rows: usize) -> Vec<f32> {
    let padded = w.columns.next_multiple_of(STEP);
    let mut y = vec![0f32; rows * w.out];
    if y.is_empty() || w.columns == 0 {
        return y;
    }
    let x = &interleaved(x, rows, w.columns);
    let output = &Output::new(&mut y, rows, w.out);
    // Whole blocks of rows, as many as the cache holds.
    let cached = (CACHED / (padded * size_of::<f32>())).next_multiple_of(BLOCK).max(BLOCK);
    pool::split(w.tiles(), GRAIN / (rows * padded * TILE) + 1, &|tiles| {
        for (part, x) in x.chunks(cached * padded).enumerate() {
            for tile in tiles.clone() {
                let rows = part * cached;
                Arch::new().dispatch(Multiply { x, w: w.tile(tile), output, rows, tile, padded });
            }
        }
    });
    y
}

/// Blocks of rows of x, in each the rows' numbers of one column side by side; columns padded with zeros.
pub(super) fn interleaved(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let padded = columns.next_multiple_of(STEP);
    let mut out = vec![0f32; rows * padded];
    for (x, out) in x.chunks(BLOCK * columns).zip(out.chunks_mut(BLOCK * padded)) {
        let block = out.len() / padded;
        for (row, x) in x.chunks_exact(columns).enumerate() {
            for (x, out) in x.iter().zip(out.chunks_exact_mut(block)) {
                out[row] = *x;
            }
        }
    }
    out
}

/// One tile with some rows of interleaved x.
pub(super) struct Multiply<'a, W> {
    pub x: &'a [f32],
    pub w: &'a [W],
    pub output: &'a Output<'a>,
    /// The first of them.
    pub rows: usize,
    pub tile: usize,
    pub padded: usize,
}

impl<W: Words> WithSimd for Multiply<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, w, output, rows, tile, padded } = self;
        let mut y = [[0f32; TILE]; BLOCK];
        for (number, x) in x.chunks(BLOCK * padded).enumerate() {
            let y = &mut y[..x.len() / padded];
            // Sixteen sums and what they need fit in the registers of processors that have thirty-two: then a tile is gone
            // through once. Of those with eight lanes none has.
            let wide = size_of::<S::f32s>() != 8 * size_of::<f32>();
            match wide || y.len() <= 4 {
                true => multiply::<S, W, 2>(simd, x, w, y),
                false => multiply::<S, W, 1>(simd, x, w, y),
            }
            // SAFETY: `product` splits tiles between threads.
            unsafe { output.put(tile, rows + number * BLOCK, y) };
        }
    }
}

/// One tile with some rows of x, V vectors of its rows at a time.
#[inline(always)]
fn multiply<S: Simd, W: Words, const V: usize>(simd: S, x: &[f32], w: &[W], y: &mut [[f32; TILE]]) {
    match y.len() {
        1 => multiply_rows::<S, W, 1, V>(simd, x, w, y),
        2 => multiply_rows::<S, W, 2, V>(simd, x, w, y),
        3 => multiply_rows::<S, W, 3, V>(simd, x, w, y),
        4 => multiply_rows::<S, W, 4, V>(simd, x, w, y),
        5 => multiply_rows::<S, W, 5, V>(simd, x, w, y),
        6 => multiply_rows::<S, W, 6, V>(simd, x, w, y),
        7 => multiply_rows::<S, W, 7, V>(simd, x, w, y),
        _ => multiply_rows::<S, W, BLOCK, V>(simd, x, w, y),
    }
}

/// With N rows of x.
#[inline(always)]
fn multiply_rows<S: Simd, W: Words, const N: usize, const V: usize>(
    simd: S,
    x: &[f32],
    w: &[W],
    y: &mut [[f32; TILE]],
) {
    let steps = x.as_chunks::<N>().0.as_chunks::<STEP>().0;
    let lanes = size_of::<S::f32s>() / size_of::<f32>();
    for first in (0..TILE / lanes).step_by(V) {
        let sums = W::sums::<S, N, V>(simd, steps, w, first);
        for (y, sums) in y.iter_mut().zip(sums) {
            S::as_mut_simd_f32s(y).0[first..first + V].copy_from_slice(&sums);
        }
    }
}
