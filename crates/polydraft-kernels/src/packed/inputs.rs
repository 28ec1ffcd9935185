//! Inputs of products in integers: rows of x, rounded to 8 bits in blocks of 32 columns.
//!
//! A block of x becomes `scale · q` with q from −127 to 127 and scale = max |x| / 127, so the error
//! of a number is at most half the scale. A block does not depend on other blocks. Every sum with a
//! block that has a non-finite number is NaN. A block whose numbers are all below 3.8e-37 is
//! rounded to zeros.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use pulp::{Arch, NullaryFnOnce};

use super::block::{Block, COLUMNS};
use super::round::{ROUND, largest};
use crate::pool;

/// A rounded block of a row of x.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Input {
    pub numbers: [i8; COLUMNS],
    pub scale: f32,
    /// Sums of the spans; as in the weights, one span of 32 columns or two of 16.
    pub spans: [Span; 2],
}

/// Sums over the numbers of a span.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Span {
    /// Initial value of a sum of products that corrects the offset of the weights' numbers:
    /// −offset · Σ numbers.
    pub shift: i32,
    /// scale · Σ numbers, the factor of the weights' minimum.
    pub sum: f32,
}

const ZERO: Input =
    Input { numbers: [0; COLUMNS], scale: 0.0, spans: [Span { shift: 0, sum: 0.0 }; 2] };
/// Minimum number of blocks per thread.
const MIN_WORK: usize = 1 << 8;

/// Rounds one block of x.
#[inline(always)]
fn round_block(x: &[f32; COLUMNS], offset: i32, spans: usize) -> Input {
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

/// Rows of x in groups: within a group, the blocks of all its rows for the same columns are
/// adjacent.
pub(super) struct Inputs {
    blocks: Vec<Input>,
    /// Number of rows of a group; the last one may have fewer.
    pub group: usize,
    /// Number of blocks of a row.
    width: usize,
}

impl Inputs {
    /// Rounds x `[rows, columns]`. `columns` must be a multiple of [`COLUMNS`].
    pub fn new<B: Block>(x: &[f32], columns: usize, group: usize) -> Self {
        // Required for all blocks to be written below.
        assert!(columns.is_multiple_of(COLUMNS) && x.len().is_multiple_of(columns));
        let width = columns / COLUMNS;
        let length = x.len() / COLUMNS;
        let mut blocks = Vec::with_capacity(length);
        let shared = SharedBlocks { blocks: blocks.spare_capacity_mut().as_mut_ptr(), length };
        let groups = x.len().div_ceil(group * columns);
        pool::parallel_ranges(groups, MIN_WORK / (group * width) + 1, &|groups| {
            let (from, to) = (groups.start * group, groups.end * group);
            let x = &x[from * columns..(to * columns).min(x.len())];
            // SAFETY: each group belongs to one thread, so slices do not overlap.
            let blocks = unsafe { shared.slice(from * width, x.len() / COLUMNS) };
            Arch::new().dispatch(Round {
                x,
                blocks,
                columns,
                group,
                offset: B::OFFSET,
                spans: B::SPANS,
            });
        });
        // SAFETY: the capacity is `length`, and every group was written.
        unsafe { blocks.set_len(length) };
        Self { blocks, group, width }
    }

    /// Returns the groups in order, each `[blocks, rows]`.
    pub fn groups(&self) -> impl Iterator<Item = &[Input]> {
        self.blocks.chunks(self.group * self.width)
    }

    /// Returns the number of blocks of a row.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// Uninitialized blocks that several threads write, each a different range.
struct SharedBlocks {
    blocks: *mut MaybeUninit<Input>,
    length: usize,
}

// SAFETY: the pointer is only used by `slice`, whose slices do not overlap.
unsafe impl Sync for SharedBlocks {}

impl SharedBlocks {
    /// Returns a range of blocks.
    ///
    /// # Safety
    /// - No other slice overlaps this one while it is alive.
    /// - The underlying vector outlives the slice, and is not accessed meanwhile.
    #[expect(clippy::mut_from_ref, reason = "slices do not overlap, by the caller's guarantee")]
    unsafe fn slice(&self, from: usize, count: usize) -> &mut [MaybeUninit<Input>] {
        assert!(from + count <= self.length);
        // SAFETY: in bounds by the assertion; unaliased by the caller's guarantee.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.add(from), count) }
    }
}

/// Rounds full groups of rows.
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
        let groups = x.chunks(group * columns).zip(blocks.chunks_mut(group * columns / COLUMNS));
        for (x, blocks) in groups {
            let rows = x.len() / columns;
            for (row, x) in x.chunks_exact(columns).enumerate() {
                for (x, blocks) in x.as_chunks().0.iter().zip(blocks.chunks_exact_mut(rows)) {
                    blocks[row].write(round_block(x, offset, spans));
                }
            }
        }
    }
}
