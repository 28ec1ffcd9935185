//! Columns in f32, in a core's fastest cache while many rows are multiplied with them.

use pulp::Simd;

use super::step::{STEP, Step};
use super::sums::{Add, Sums, Widen, Words, add_column, add_step};
use crate::fetch::{CacheLevel, PassPrefetch, prefetch_ahead};
use crate::packed::block::COLUMNS;
use crate::packed::tiles::TILE;

/// Four columns of a tile.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::packed) struct Wide([[f32; TILE]; STEP]);

impl Wide {
    pub const ZERO: Self = Self([[0.0; TILE]; STEP]);

    /// Vector `v` of the rows.
    #[inline(always)]
    pub fn put<S: Simd>(&mut self, v: usize, columns: [S::f32s; STEP]) {
        for (numbers, column) in self.0.iter_mut().zip(columns) {
            S::as_mut_simd_f32s(numbers).0[v] = column;
        }
    }

    #[inline(always)]
    fn vectors<S: Simd>(&self, v: usize) -> [S::f32s; STEP] {
        let [a, b, c, d] = &self.0;
        [
            S::as_simd_f32s(a).0[v],
            S::as_simd_f32s(b).0[v],
            S::as_simd_f32s(c).0[v],
            S::as_simd_f32s(d).0[v],
        ]
    }

    /// Adds the products of the four columns. A column is loaded when it is needed, and not kept in
    /// registers.
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

impl Add for Wide {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        _ahead: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        for (x, w) in x.iter().zip(w) {
            w.add_to(simd, x, first, sums);
        }
    }
}

impl<W: Widen> Words for W {
    type Wide = Wide;
    const SUMS: [usize; 2] = W::SUMS;
    const TOGETHER: usize = W::TOGETHER;
    const FEW: usize = W::FEW;

    #[inline(always)]
    fn widened<'a, S: Simd>(simd: S, w: &'a [Self], room: &'a mut Vec<Wide>) -> &'a [Wide] {
        room.resize(w.len(), Wide::ZERO);
        for (w, room) in w.iter().zip(&mut *room) {
            prefetch_ahead(w, 0, 1, CacheLevel::L2);
            for v in 0..TILE / S::F32_LANES {
                room.put::<S>(v, w.widen(simd, v));
            }
        }
        room
    }
}

/// Blocks whose numbers are multiplied before their scale: each block has sums of its own.
pub(super) trait Scaled {
    /// Of four columns.
    const STEPS: usize;
    /// Whether it comes from memory.
    const FAR: bool;
    /// Vector `v` of the rows as four columns, without the scale.
    fn numbers<S: Simd>(&self, simd: S, step: usize, v: usize) -> [S::f32s; STEP];
    fn scales(&self) -> [f32; TILE];
}

#[inline(always)]
pub(super) fn add_scaled<S: Simd, W: Scaled, const N: usize, const V: usize>(
    simd: S,
    x: &[Step<N>],
    w: &[W],
    first: usize,
    ahead: PassPrefetch,
    out: &mut Sums<S, N, V>,
) {
    let zero = simd.splat_f32s(0.0);
    for (piece, (x, w)) in x.chunks_exact(W::STEPS).zip(w).enumerate() {
        if W::FAR {
            ahead.step(piece);
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

/// A block of integers in f32, and its scale.
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
    const FAR: bool = false;

    #[inline(always)]
    fn numbers<S: Simd>(&self, _simd: S, step: usize, v: usize) -> [S::f32s; STEP] {
        self.numbers[step].vectors::<S>(v)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; TILE] {
        self.scales
    }
}

impl Add for WideBlock {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        ahead: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        add_scaled(simd, x, w, first, ahead, sums);
    }
}
