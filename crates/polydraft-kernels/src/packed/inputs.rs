//! Inputs of products in integers: rows of x, rounded to 8 bits in blocks of 32 columns with a
//! scale each.
//!
//! A block of x becomes `scale · q`, q from −127 to 127, scale = largest / 127: each number is off
//! by at most half a scale. What a block becomes depends on nothing else. A block with a number
//! that is not finite makes every sum with it NaN; one whose numbers are all below 3.8e-37 counts
//! as zeros.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use pulp::{Arch, NullaryFnOnce};

use super::block::{Block, COLUMNS};
use super::round::{ROUND, largest};
use crate::pool;

/// A block of a row of x.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Input {
    pub numbers: [i8; COLUMNS],
    pub scale: f32,
    /// Of all its numbers, or of 16 each, as the weights have scales.
    pub spans: [Span; 2],
}

/// Numbers of a block together.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Span {
    /// What sums begin with where the weights' numbers are stored with an offset: −offset · Σ
    /// numbers.
    pub shift: i32,
    /// scale · Σ numbers: what a minimum is multiplied with.
    pub sum: f32,
}

const ZERO: Input =
    Input { numbers: [0; COLUMNS], scale: 0.0, spans: [Span { shift: 0, sum: 0.0 }; 2] };
/// Blocks that are worth another thread.
const GRAIN: usize = 1 << 8;

#[inline(always)]
fn rounded(x: &[f32; COLUMNS], offset: i32, spans: usize) -> Input {
    let largest = largest(x);
    let inverse = 127.0 / largest;
    if !largest.is_finite() {
        return Input { scale: f32::NAN, spans: [Span { shift: 0, sum: f32::NAN }; 2], ..ZERO };
    }
    if !inverse.is_finite() {
        return ZERO;
    }
    let mut out = Input { scale: largest / 127.0, ..ZERO };
    let mut sums = [0; 2];
    for (number, x) in out.numbers.iter_mut().zip(x) {
        *number = (x * inverse + ROUND).to_bits() as i8;
    }
    for (sum, numbers) in sums.iter_mut().zip(out.numbers.as_chunks::<{ COLUMNS / 2 }>().0) {
        for number in numbers {
            *sum += i32::from(*number);
        }
    }
    if spans == 1 {
        sums = [sums[0] + sums[1], 0];
    }
    for (span, sum) in out.spans.iter_mut().zip(sums) {
        *span = Span { shift: -offset * sum, sum: out.scale * sum as f32 };
    }
    out
}

/// Rows of x in groups; in each, the rows' parts of one block of columns side by side.
pub(super) struct Inputs {
    blocks: Vec<Input>,
    /// Rows of a group; the last may have fewer.
    pub group: usize,
    /// Blocks of a row.
    width: usize,
}

impl Inputs {
    /// x `[rows, columns]`, columns a multiple of [`COLUMNS`].
    pub fn new<B: Block>(x: &[f32], columns: usize, group: usize) -> Self {
        // What is not written below would not be numbers.
        assert!(columns.is_multiple_of(COLUMNS) && x.len().is_multiple_of(columns));
        let width = columns / COLUMNS;
        let length = x.len() / COLUMNS;
        let mut blocks = Vec::with_capacity(length);
        let parts = Parts { blocks: blocks.spare_capacity_mut().as_mut_ptr(), length };
        let groups = x.len().div_ceil(group * columns);
        pool::parallel_ranges(groups, GRAIN / (group * width) + 1, &|groups| {
            let (from, to) = (groups.start * group, groups.end * group);
            let x = &x[from * columns..(to * columns).min(x.len())];
            // SAFETY: groups are split between threads.
            let blocks = unsafe { parts.slice(from * width, x.len() / COLUMNS) };
            Arch::new().dispatch(Round {
                x,
                blocks,
                columns,
                group,
                offset: B::OFFSET,
                spans: B::SPANS,
            });
        });
        // SAFETY: so many were allocated, and each group of them written.
        unsafe { blocks.set_len(length) };
        Self { blocks, group, width }
    }

    /// The groups in order: blocks, in each the group's rows.
    pub fn groups(&self) -> impl Iterator<Item = &[Input]> {
        self.blocks.chunks(self.group * self.width)
    }

    /// Blocks of a row.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// Room that threads share, each its own part.
struct Parts {
    blocks: *mut MaybeUninit<Input>,
    length: usize,
}

// SAFETY: it is reached by `slice` only.
unsafe impl Sync for Parts {}

impl Parts {
    /// # Safety
    /// While the slice lives, no other may overlap it, and what it was made from must live and not
    /// be used.
    #[expect(clippy::mut_from_ref, reason = "parts that do not overlap, as the caller promises")]
    unsafe fn slice(&self, from: usize, count: usize) -> &mut [MaybeUninit<Input>] {
        assert!(from + count <= self.length);
        // SAFETY: within the bounds, and the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.add(from), count) }
    }
}

/// Whole groups.
struct Round<'a> {
    x: &'a [f32],
    blocks: &'a mut [MaybeUninit<Input>],
    columns: usize,
    group: usize,
    offset: i32,
    spans: usize,
}

impl NullaryFnOnce for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, blocks, columns, group, offset, spans } = self;
        let parts = x.chunks(group * columns).zip(blocks.chunks_mut(group * columns / COLUMNS));
        for (x, blocks) in parts {
            let rows = x.len() / columns;
            for (row, x) in x.chunks_exact(columns).enumerate() {
                for (x, blocks) in x.as_chunks().0.iter().zip(blocks.chunks_exact_mut(rows)) {
                    blocks[row].write(rounded(x, offset, spans));
                }
            }
        }
    }
}
