//! Products in f32, with weights that are used exactly as they are stored.
//!
//! Problem: compute y = x · wᵀ for x `[rows, in]` in f32 and w `[out, in]` in 8 to 32 bits. The
//! cost is reading w.
//!
//! Method: our own. A vector holds one column of w for several rows of a tile. It is widened to
//! f32, exactly, and multiplied by one number of x, so there is no sum across a vector. The sums
//! for a group of rows of x stay in registers: N rows with V vectors of the tile need N · V
//! accumulators. A row's result does not depend on the other rows of x, so trees of different
//! shapes give a node the same logits. There are three regimes:
//! 1. Few rows, whose sums with a full tile fit into the registers. Each weight is widened once, in
//!    one pass over the tile. Strides through a tile cost more than a few spilled sums: one row in
//!    bf16 took 1.4 times as long with strides.
//! 2. A few more rows, in several passes. A pass computes a group of rows with some vectors of the
//!    tile. Passes alternate over panels of columns that stay in the L1 cache ([`PANEL`]), so w is
//!    still read from memory once. The passes share the prefetching of the next panel, in order of
//!    addresses ([`PassPrefetch`]). Weights are widened in every pass. So with 16 registers, more
//!    than five rows in bf16 are divided into two groups, whose passes can hold two vectors; with
//!    32 registers, groups have eight rows, up to [`ExactWeights::SMALL_BATCH`] rows. Compared with
//!    one group and no panels, four rows in bf16 took 0.91 instead of 1.36 times as long as one,
//!    and eight 1.34 instead of 2.0 times (AVX2, two threads, weights from memory).
//! 3. Many rows. [`DEPTH`] columns of a tile are widened once, and stay in the L1 cache while all
//!    groups of rows use them. Memory is idle meanwhile, so this pays off only above a number of
//!    rows: sixteen rows in bf16 took 7.0 times as long as one this way, and 4.8 times as a small
//!    batch (EPYC with AVX-512, one thread).
//!
//! Complexity: `rows · out · in` multiply-adds, `out · in` conversions and one read of w from
//! memory.

#![allow(unsafe_code)]

mod step;
mod sums;
mod wide;
mod words;

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::output::Output;
use super::tiles::{TILE, Tiles};
use crate::fetch::{CacheLevel, PassPrefetch};
use crate::{pool, stack};
use step::{MAX_GROUP, MAX_SMALL_BATCH, STEP};
use sums::AddProducts;
pub(super) use sums::ExactWeights;
pub(super) use words::{Bf16, F16, F32};

/// Minimum number of multiply-adds per thread.
const MIN_WORK: usize = 1 << 16;
/// Number of columns that are widened at a time for large batches; a multiple of all chunk widths.
const DEPTH: usize = 256;
/// Approximate size of a panel in bytes. With half of it, four rows in bf16 took a seventh longer.
const PANEL: usize = 1 << 12;

/// Returns y `[rows, out]` for x `[rows, in]`, in `buffer` if its capacity suffices.
pub(super) fn product<W: ExactWeights>(
    w: &Tiles<W>,
    x: &[f32],
    rows: usize,
    buffer: Vec<f32>,
) -> Vec<f32> {
    if rows * w.out == 0 || w.columns == 0 {
        return vec![0.0; rows * w.out];
    }
    let (x, output) =
        (&PackedInputs::new::<W>(x, rows, w.columns), Output::new(rows, w.out, buffer));
    pool::parallel_ranges(w.tiles(), MIN_WORK / (rows * x.padded * TILE) + 1, &|tiles| {
        Arch::new().dispatch(Multiply { x, w, output: &output, tiles });
    });
    // SAFETY: the ranges cover all tiles, and each tile was written with all rows.
    unsafe { output.assume_written() }
}

/// Rows of x, packed for products: `[depth blocks, groups, columns, rows of the group]`.
///
/// Columns are padded with zeros to a multiple of [`STEP`]. A small batch has one depth block with
/// all columns.
pub(super) struct PackedInputs {
    numbers: Vec<f32>,
    count: usize,
    /// Number of rows of a group; the last one may have fewer.
    group: usize,
    /// Number of columns, with padding.
    padded: usize,
    is_small_batch: bool,
    /// Number of columns of a depth block.
    depth: usize,
}

impl PackedInputs {
    pub fn new<W: ExactWeights>(x: &[f32], count: usize, columns: usize) -> Self {
        assert_eq!(x.len(), count * columns);
        let (group, is_small_batch) =
            Arch::new().dispatch(GroupRows { count, weights: PhantomData::<W> });
        let padded = columns.next_multiple_of(STEP);
        let depth = if is_small_batch { padded } else { DEPTH };
        let mut numbers = Vec::with_capacity(count * padded);
        let spare = &mut numbers.spare_capacity_mut()[..count * padded];
        let blocks: Vec<_> = spare.chunks_mut(depth * count).enumerate().collect();
        pool::parallel_for_each(blocks, MIN_WORK / (depth * count) + 1, |(block, out)| {
            let (first, depth) = (block * depth, out.len() / count);
            for (x, out) in x.chunks(group * columns).zip(out.chunks_mut(group * depth)) {
                let rows = x.len() / columns;
                for (column, out) in (first..).zip(out.chunks_exact_mut(rows)) {
                    if column >= columns {
                        out.fill(MaybeUninit::new(0.0));
                        continue;
                    }
                    for (out, x) in out.iter_mut().zip(x[column..].iter().step_by(columns)) {
                        out.write(*x);
                    }
                }
            }
        });
        // SAFETY: all `count * padded` numbers were written: depth blocks cover all columns with
        // their padding, and the groups of each block cover all rows.
        unsafe { numbers.set_len(count * padded) };
        Self { numbers, count, group, padded, is_small_batch, depth }
    }

    /// Returns the groups of a depth block, each `[columns, rows]`.
    fn groups(&self, block: usize) -> impl Iterator<Item = &[f32]> {
        let depth = self.depth.min(self.padded - block * self.depth);
        let start = block * self.depth * self.count;
        self.numbers[start..][..depth * self.count].chunks(self.group * depth)
    }
}

/// Splits `count` rows into groups: returns the number of rows per group, and whether `count` is a
/// small batch.
///
/// With 16 registers, a small batch is one group, or two if it exceeds [`ExactWeights::MAX_ROWS`];
/// groups of a large batch have as many rows as there are registers for their sums with two
/// vectors. With 32 registers, groups have up to [`MAX_GROUP`] rows.
struct GroupRows<W> {
    count: usize,
    weights: PhantomData<W>,
}

impl<W: ExactWeights> WithSimd for GroupRows<W> {
    type Output = (usize, bool);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> (usize, bool) {
        let group = match has_16_registers::<S>() {
            true if self.count > MAX_GROUP => 6,
            true if self.count > W::MAX_ROWS => self.count.div_ceil(2),
            true => self.count,
            false => self.count.min(MAX_GROUP),
        };
        let small_batch = if has_16_registers::<S>() { MAX_GROUP } else { W::SMALL_BATCH };
        (group, self.count <= small_batch)
    }
}

/// Whether the CPU has 16 vector registers, as with 8 lanes (AVX2). Others have 32 (AVX-512, NEON).
#[inline(always)]
const fn has_16_registers<S: Simd>() -> bool {
    S::F32_LANES == 8
}

/// Multiplies tiles with all rows of x.
pub(super) struct Multiply<'a, W> {
    pub x: &'a PackedInputs,
    pub w: &'a Tiles<W>,
    pub output: &'a Output,
    /// Tiles to compute; no other thread may write them.
    pub tiles: Range<usize>,
}

impl<W: ExactWeights> WithSimd for Multiply<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        stack::align();
        if self.x.is_small_batch { self.small_batch(simd) } else { self.large_batch(simd) }
    }
}

impl<W: ExactWeights> Multiply<'_, W> {
    /// Computes the tiles for a small batch (regimes 1 and 2).
    #[inline(always)]
    fn small_batch<S: Simd>(&self, simd: S) {
        const { assert!(MAX_GROUP <= W::SMALL_BATCH && W::SMALL_BATCH <= MAX_SMALL_BATCH) };
        let (rows, group) = (self.x.count, self.x.group);
        // Vectors of the tile per pass. 32 registers hold the sums of any group with two.
        let vectors = match has_16_registers::<S>() {
            true if group * 4 <= W::MAX_SUMS[0] => 4,
            true if group * 2 > W::MAX_SUMS[1] => 1,
            _ => 2,
        };
        let passes_per_group = (TILE / S::F32_LANES / vectors).max(1);
        let passes = rows.div_ceil(group) * passes_per_group;
        let mut y = [[0f32; TILE]; MAX_SMALL_BATCH];
        for tile in self.tiles.clone() {
            let (w, y) = (self.w.tile(tile), &mut y[..rows]);
            y.fill([0.0; TILE]);
            let panel = if passes > 1 { (PANEL / size_of::<W>()).max(1) } else { w.len() };
            for (number, w) in w.chunks(panel).enumerate() {
                let column = number * panel * W::COLUMNS;
                for (group_index, (x, y)) in self.x.groups(0).zip(y.chunks_mut(group)).enumerate() {
                    let (x, pass) =
                        (&x[column * y.len()..], [group_index * passes_per_group, passes]);
                    match vectors {
                        4 => multiply::<S, W, 4>(simd, x, w, y, 0..TILE, pass),
                        2 => multiply::<S, W, 2>(simd, x, w, y, 0..TILE, pass),
                        _ => multiply::<S, W, 1>(simd, x, w, y, 0..TILE, pass),
                    }
                }
            }
            // SAFETY: no other thread writes these tiles.
            unsafe { self.output.write(tile, 0, y) };
        }
    }

    /// Computes the tiles for a large batch (regime 3).
    #[inline(always)]
    fn large_batch<S: Simd>(&self, simd: S) {
        const { assert!(DEPTH.is_multiple_of(W::COLUMNS)) };
        let vectors = 2 * S::F32_LANES;
        let mut scratch = Vec::new();
        let mut sums = vec![[0f32; TILE]; self.x.count];
        for tile in self.tiles.clone() {
            sums.fill([0.0; TILE]);
            for (block, w) in self.w.tile(tile).chunks(DEPTH / W::COLUMNS).enumerate() {
                let wide = W::widened(simd, w, &mut scratch);
                for first in (0..TILE).step_by(vectors) {
                    for (x, sums) in self.x.groups(block).zip(sums.chunks_mut(self.x.group)) {
                        multiply::<S, W::Wide, 2>(
                            simd,
                            x,
                            wide,
                            sums,
                            first..first + vectors,
                            [0, 1],
                        );
                    }
                }
            }
            // SAFETY: no other thread writes these tiles.
            unsafe { self.output.write(tile, 0, &sums) };
        }
    }
}

/// Adds the products of one group of x with `rows` of a tile to y, V vectors of the tile per pass.
///
/// `pass` holds the number of the first pass over these chunks, and the total number of passes.
#[inline(always)]
fn multiply<S: Simd, W: AddProducts, const V: usize>(
    simd: S,
    x: &[f32],
    w: &[W],
    y: &mut [[f32; TILE]],
    rows: Range<usize>,
    pass: [usize; 2],
) {
    match y.len() {
        1 => multiply_rows::<S, W, 1, V>(simd, x, w, y, rows, pass),
        2 => multiply_rows::<S, W, 2, V>(simd, x, w, y, rows, pass),
        3 => multiply_rows::<S, W, 3, V>(simd, x, w, y, rows, pass),
        4 => multiply_rows::<S, W, 4, V>(simd, x, w, y, rows, pass),
        5 => multiply_rows::<S, W, 5, V>(simd, x, w, y, rows, pass),
        6 => multiply_rows::<S, W, 6, V>(simd, x, w, y, rows, pass),
        7 => multiply_rows::<S, W, 7, V>(simd, x, w, y, rows, pass),
        _ => multiply_rows::<S, W, MAX_GROUP, V>(simd, x, w, y, rows, pass),
    }
}

/// Adds the products of a group of N rows of x.
#[inline(always)]
fn multiply_rows<S: Simd, W: AddProducts, const N: usize, const V: usize>(
    simd: S,
    x: &[f32],
    w: &[W],
    y: &mut [[f32; TILE]],
    rows: Range<usize>,
    [pass, passes]: [usize; 2],
) {
    let steps = x.as_chunks::<N>().0.as_chunks::<STEP>().0;
    let level = CacheLevel::choose(size_of_val(steps), size_of_val(w));
    let vectors = (rows.start / S::F32_LANES..rows.end / S::F32_LANES).step_by(V);
    for (pass, first) in (pass..).zip(vectors) {
        let mut sums = [[simd.splat_f32s(0.0); V]; N];
        for (y, sums) in y.iter().zip(&mut sums) {
            sums.copy_from_slice(&S::as_simd_f32s(y).0[first..first + V]);
        }
        W::add::<S, N, V>(
            simd,
            steps,
            w,
            first,
            PassPrefetch::new(w, pass, passes, level),
            &mut sums,
        );
        for (y, sums) in y.iter_mut().zip(sums) {
            S::as_mut_simd_f32s(y).0[first..first + V].copy_from_slice(&sums);
        }
    }
}
