//! Widened weights in f32, which stay in the L1 cache while large batches are multiplied.

use pulp::Simd;

use super::step::{STEP, Step};
use super::sums::{AddProducts, ExactWeights, Sums, Widen, add_column, add_step};
use crate::fetch::{CacheLevel, PassPrefetch, prefetch_ahead};
use crate::packed::block::COLUMNS;
use crate::packed::tiles::TILE;

/// Four columns of a tile in f32.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::packed) struct Wide([[f32; TILE]; STEP]);

impl Wide {
    pub const ZERO: Self = Self([[0.0; TILE]; STEP]);

    /// Stores vector `v` of the rows.
    #[inline(always)]
    pub fn store<S: Simd>(&mut self, v: usize, columns: [S::f32s; STEP]) {
        for (numbers, column) in self.0.iter_mut().zip(columns) {
            S::as_mut_simd_f32s(numbers).0[v] = column;
        }
    }

    /// Loads vector `v` of the rows.
    #[inline(always)]
    fn load<S: Simd>(&self, v: usize) -> [S::f32s; STEP] {
        let [a, b, c, d] = &self.0;
        [
            S::as_simd_f32s(a).0[v],
            S::as_simd_f32s(b).0[v],
            S::as_simd_f32s(c).0[v],
            S::as_simd_f32s(d).0[v],
        ]
    }

    /// Adds the products of the four columns. Each column is loaded just before its use, so that
    /// the columns do not occupy registers.
    #[inline(always)]
    pub fn add_to<S: Simd, const N: usize, const V: usize>(
        &self,
        simd: S,
        x: &Step<N>,
        first: usize,
        sums: &mut Sums<S, N, V>,
    ) {
        for (x, column) in x.iter().zip(&self.0) {
            let mut vectors = [simd.splat_f32s(0.0); V];
            vectors.copy_from_slice(&S::as_simd_f32s(column).0[first..first + V]);
            add_column::<S, N, V>(simd, sums, x, &vectors);
        }
    }
}

impl AddProducts for Wide {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        _prefetch: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        for (x, w) in x.iter().zip(w) {
            w.add_to(simd, x, first, sums);
        }
    }
}

impl<W: Widen> ExactWeights for W {
    type Wide = Wide;
    const MAX_SUMS: [usize; 2] = W::MAX_SUMS;
    const MAX_ROWS: usize = W::MAX_ROWS;
    const SMALL_BATCH: usize = W::SMALL_BATCH;

    #[inline(always)]
    fn widened<'a, S: Simd>(simd: S, w: &'a [Self], scratch: &'a mut Vec<Wide>) -> &'a [Wide] {
        scratch.resize(w.len(), Wide::ZERO);
        for (w, scratch) in w.iter().zip(&mut *scratch) {
            prefetch_ahead(w, 0, 1, CacheLevel::L2);
            for v in 0..TILE / S::F32_LANES {
                scratch.store::<S>(v, w.widen(simd, v));
            }
        }
        scratch
    }
}

/// Blocks with a scale. Their numbers are multiplied first: each block has separate sums, which are
/// then multiplied by the scale.
pub(super) trait Scaled {
    /// Number of steps of four columns in a block.
    const STEPS: usize;
    /// Whether blocks are read from memory, rather than from a scratch buffer.
    const STREAMED: bool;
    /// Returns vector `v` of the rows for four columns, without the scale.
    fn numbers<S: Simd>(&self, simd: S, step: usize, v: usize) -> [S::f32s; STEP];
    /// Returns the scales of the rows.
    fn scales(&self) -> [f32; TILE];
}

/// Adds the products of blocks with scales.
#[inline(always)]
pub(super) fn add_scaled<S: Simd, W: Scaled, const N: usize, const V: usize>(
    simd: S,
    x: &[Step<N>],
    w: &[W],
    first: usize,
    prefetch: PassPrefetch,
    out: &mut Sums<S, N, V>,
) {
    let zero = simd.splat_f32s(0.0);
    for (chunk, (x, w)) in x.chunks_exact(W::STEPS).zip(w).enumerate() {
        if W::STREAMED {
            prefetch.step(chunk);
        }
        let mut sums: Sums<S, N, V> = [[zero; V]; N];
        for (step, x) in x.iter().enumerate() {
            let mut wide = [[zero; STEP]; V];
            for (v, wide) in wide.iter_mut().enumerate() {
                *wide = w.numbers(simd, step, first + v);
            }
            add_step::<S, N, V>(simd, &mut sums, x, &wide);
        }
        let scales = w.scales();
        for v in 0..V {
            let scale = S::as_simd_f32s(&scales).0[first + v];
            for n in 0..N {
                out[n][v] = simd.mul_add_f32s(sums[n][v], scale, out[n][v]);
            }
        }
    }
}

/// A block of integers, widened to f32, with its scales.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::packed) struct WideBlock {
    pub numbers: [Wide; COLUMNS / STEP],
    pub scales: [f32; TILE],
}

impl WideBlock {
    pub const ZERO: Self = Self { numbers: [Wide::ZERO; COLUMNS / STEP], scales: [0.0; TILE] };
}

impl Scaled for WideBlock {
    const STEPS: usize = COLUMNS / STEP;
    const STREAMED: bool = false;

    #[inline(always)]
    fn numbers<S: Simd>(&self, _simd: S, step: usize, v: usize) -> [S::f32s; STEP] {
        self.numbers[step].load::<S>(v)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; TILE] {
        self.scales
    }
}

impl AddProducts for WideBlock {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        prefetch: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        add_scaled(simd, x, w, first, prefetch, sums);
    }
}
