//! Products in f32 with weights of any width: every number of the weights is used exactly as it is
//! stored.
//!
//! Problem: y = x · wᵀ for x `[rows, in]` in f32 and w `[out, in]`, where reading w is the cost.
//! Method: ours. A word of a tile holds one to four neighbouring columns of a row. Its numbers are
//! widened to f32, exactly, and multiplied with one number of x for all the rows of the tile at
//! once: no sum across a vector. A row's result does not depend on the other rows of x, so that
//! trees of different shapes give a node the same logits.
//! 1. Few rows: widened in registers, in one stream through memory while the registers hold the
//!    sums of a whole tile. Strides through a tile cost more than sums that do not find room: one
//!    row in bf16 took 1.4 times as long.
//! 2. A few more, whose sums do not find room: some vectors of the tile's rows at a time, in panels
//!    so small ([`PANEL`]) that the first cache has them when it is the next vectors' turn. Each
//!    turn asks the memory for its share of what lies ahead, in the order of addresses ([`PassPrefetch`]).
//!    In bf16, which is widened in every turn, rows beyond five are two groups, whose turns widen
//!    two vectors at once; with more registers up to [`Words::FEW`] are few, in groups of eight.
//!    Against no panels and one group, four rows in bf16 cost 0.91 of one where it were 1.36, eight
//!    1.34 and 2.0 (AVX2, two threads, weights from memory).
//! 3. Many rows: [`DEEP`] columns of a tile are widened once, and stay in a core's fastest cache
//!    for all groups of rows. While one is at that the memory waits, so for some rows more it is
//!    dearer than to widen again: sixteen in bf16 took 7.0 passes of one, and 4.8 as few (an EPYC
//!    with AVX-512, one thread).
//!
//! Complexity: `rows · out · in` multiply-adds; `out · in` conversions and one read of w from
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
use step::{FEW, MOST, STEP};
use sums::Add;
pub(super) use sums::Words;
pub(super) use words::{Bf16, F16, F32};

/// Multiply-adds that are worth another thread.
const GRAIN: usize = 1 << 16;
/// Columns that are widened together, a multiple of every piece's.
const DEEP: usize = 256;
/// Bytes of a panel, about. With half as many four rows in bf16 took a seventh longer.
const PANEL: usize = 1 << 12;

/// y `[rows, out]` for x `[rows, in]`, in `room` where that is large enough.
pub(super) fn product<W: Words>(w: &Tiles<W>, x: &[f32], rows: usize, room: Vec<f32>) -> Vec<f32> {
    if rows * w.out == 0 || w.columns == 0 {
        return vec![0.0; rows * w.out];
    }
    let (x, output) = (&Rows::new::<W>(x, rows, w.columns), Output::new(rows, w.out, room));
    pool::parallel_ranges(w.tiles(), GRAIN / (rows * x.padded * TILE) + 1, &|tiles| {
        Arch::new().dispatch(Multiply { x, w, output: &output, tiles });
    });
    // SAFETY: each tile was some thread's, and put with all rows.
    unsafe { output.written() }
}

/// Rows of x: some columns of all rows one after the other; in those the rows in groups; in a group
/// the rows' numbers of one column side by side. Columns are padded with zeros.
pub(super) struct Rows {
    numbers: Vec<f32>,
    count: usize,
    /// Rows of a group; the last may have fewer.
    group: usize,
    padded: usize,
    /// Whether they are few.
    few: bool,
    /// Columns that lie together: of few rows all.
    deep: usize,
}

impl Rows {
    pub fn new<W: Words>(x: &[f32], count: usize, columns: usize) -> Self {
        assert_eq!(x.len(), count * columns);
        let [group, few] = Arch::new().dispatch(Group { count, words: PhantomData::<W> });
        let padded = columns.next_multiple_of(STEP);
        let few = count <= few;
        let deep = if few { padded } else { DEEP };
        let mut numbers = Vec::with_capacity(count * padded);
        let room = &mut numbers.spare_capacity_mut()[..count * padded];
        let parts: Vec<_> = room.chunks_mut(deep * count).enumerate().collect();
        pool::parallel_for_each(parts, GRAIN / (deep * count) + 1, |(part, out)| {
            let (from, deep) = (part * deep, out.len() / count);
            for (x, out) in x.chunks(group * columns).zip(out.chunks_mut(group * deep)) {
                let rows = x.len() / columns;
                for (column, out) in (from..).zip(out.chunks_exact_mut(rows)) {
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
        // SAFETY: each number was written: the parts are all columns, with the padding, and in each
        // the groups are all rows.
        unsafe { numbers.set_len(count * padded) };
        Self { numbers, count, group, padded, few, deep }
    }

    /// All rows' part of some columns, by group.
    fn groups(&self, part: usize) -> impl Iterator<Item = &[f32]> {
        let deep = self.deep.min(self.padded - part * self.deep);
        self.numbers[part * self.deep * self.count..][..deep * self.count].chunks(self.group * deep)
    }
}

/// How many of so many rows a group has, and how many are few: few are one, or two if only so many
/// are to be together; of many there are as many as there are registers for their sums with two
/// vectors of a tile's rows, beside what they need.
struct Group<W> {
    count: usize,
    words: PhantomData<W>,
}

impl<W: Words> WithSimd for Group<W> {
    type Output = [usize; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> [usize; 2] {
        let group = match eight_lanes::<S>() {
            true if self.count > MOST => 6,
            true if self.count > W::TOGETHER => self.count.div_ceil(2),
            true => self.count,
            false => self.count.min(MOST),
        };
        let few = if eight_lanes::<S>() { MOST } else { W::FEW };
        [group, few]
    }
}

/// CPUs with eight lanes have sixteen registers; those with more lanes, or fewer, have thirty-two.
#[inline(always)]
const fn eight_lanes<S: Simd>() -> bool {
    S::F32_LANES == 8
}

/// Some tiles with all rows of x.
pub(super) struct Multiply<'a, W> {
    pub x: &'a Rows,
    pub w: &'a Tiles<W>,
    pub output: &'a Output,
    /// Nobody else may put these.
    pub tiles: Range<usize>,
}

impl<W: Words> WithSimd for Multiply<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        stack::align();
        if self.x.few { self.few(simd) } else { self.many(simd) }
    }
}

impl<W: Words> Multiply<'_, W> {
    /// All tiles with few rows.
    #[inline(always)]
    fn few<S: Simd>(&self, simd: S) {
        const { assert!(MOST <= W::FEW && W::FEW <= FEW) };
        let (rows, group) = (self.x.count, self.x.group);
        // Where lanes are not eight there are thirty-two registers: for two vectors' sums with any
        // number of rows.
        let vectors = match eight_lanes::<S>() {
            true if group * 4 <= W::SUMS[0] => 4,
            true if group * 2 > W::SUMS[1] => 1,
            _ => 2,
        };
        let each = (TILE / S::F32_LANES / vectors).max(1);
        let turns = rows.div_ceil(group) * each;
        let mut y = [[0f32; TILE]; FEW];
        for tile in self.tiles.clone() {
            let (w, y) = (self.w.tile(tile), &mut y[..rows]);
            y.fill([0.0; TILE]);
            let panel = if turns > 1 { (PANEL / size_of::<W>()).max(1) } else { w.len() };
            for (number, w) in w.chunks(panel).enumerate() {
                let column = number * panel * W::COLUMNS;
                for (turn, (x, y)) in self.x.groups(0).zip(y.chunks_mut(group)).enumerate() {
                    let (x, turn) = (&x[column * y.len()..], [turn * each, turns]);
                    match vectors {
                        4 => multiply::<S, W, 4>(simd, x, w, y, 0..TILE, turn),
                        2 => multiply::<S, W, 2>(simd, x, w, y, 0..TILE, turn),
                        _ => multiply::<S, W, 1>(simd, x, w, y, 0..TILE, turn),
                    }
                }
            }
            // SAFETY: the tiles are this thread's alone.
            unsafe { self.output.put(tile, 0, y) };
        }
    }

    /// All tiles with several groups.
    #[inline(always)]
    fn many<S: Simd>(&self, simd: S) {
        const { assert!(DEEP.is_multiple_of(W::COLUMNS)) };
        let vectors = 2 * S::F32_LANES;
        let mut room = Vec::new();
        let mut sums = vec![[0f32; TILE]; self.x.count];
        for tile in self.tiles.clone() {
            sums.fill([0.0; TILE]);
            for (part, w) in self.w.tile(tile).chunks(DEEP / W::COLUMNS).enumerate() {
                let wide = W::widened(simd, w, &mut room);
                for first in (0..TILE).step_by(vectors) {
                    for (x, sums) in self.x.groups(part).zip(sums.chunks_mut(self.x.group)) {
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
            // SAFETY: the tiles are this thread's alone.
            unsafe { self.output.put(tile, 0, &sums) };
        }
    }
}

/// Adds the products of one group with `rows` of a tile, V vectors of them at a time. Each is a
/// turn with these pieces; the first's number is given, and how many turns there are in all.
#[inline(always)]
fn multiply<S: Simd, W: Add, const V: usize>(
    simd: S,
    x: &[f32],
    w: &[W],
    y: &mut [[f32; TILE]],
    rows: Range<usize>,
    turn: [usize; 2],
) {
    match y.len() {
        1 => multiply_rows::<S, W, 1, V>(simd, x, w, y, rows, turn),
        2 => multiply_rows::<S, W, 2, V>(simd, x, w, y, rows, turn),
        3 => multiply_rows::<S, W, 3, V>(simd, x, w, y, rows, turn),
        4 => multiply_rows::<S, W, 4, V>(simd, x, w, y, rows, turn),
        5 => multiply_rows::<S, W, 5, V>(simd, x, w, y, rows, turn),
        6 => multiply_rows::<S, W, 6, V>(simd, x, w, y, rows, turn),
        7 => multiply_rows::<S, W, 7, V>(simd, x, w, y, rows, turn),
        _ => multiply_rows::<S, W, MOST, V>(simd, x, w, y, rows, turn),
    }
}

/// With N rows of x.
#[inline(always)]
fn multiply_rows<S: Simd, W: Add, const N: usize, const V: usize>(
    simd: S,
    x: &[f32],
    w: &[W],
    y: &mut [[f32; TILE]],
    rows: Range<usize>,
    [turn, turns]: [usize; 2],
) {
    let steps = x.as_chunks::<N>().0.as_chunks::<STEP>().0;
    let cache = CacheLevel::choose(size_of_val(steps), size_of_val(w));
    let vectors = (rows.start / S::F32_LANES..rows.end / S::F32_LANES).step_by(V);
    for (turn, first) in (turn..).zip(vectors) {
        let mut sums = [[simd.splat_f32s(0.0); V]; N];
        for (y, sums) in y.iter().zip(&mut sums) {
            sums.copy_from_slice(&S::as_simd_f32s(y).0[first..first + V]);
        }
        W::add::<S, N, V>(
            simd,
            steps,
            w,
            first,
            PassPrefetch::new(w, turn, turns, cache),
            &mut sums,
        );
        for (y, sums) in y.iter_mut().zip(sums) {
            S::as_mut_simd_f32s(y).0[first..first + V].copy_from_slice(&sums);
        }
    }
}
