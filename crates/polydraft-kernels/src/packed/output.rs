//! Output buffer of a product, written by several threads.
//!
//! The buffer is not zeroed first. For a long prompt that would take a tenth of the time, on one
//! thread while the others wait.

#![allow(unsafe_code)]

use super::tiles::TILE;

/// Output y `[rows, out]`. Each thread writes the columns of its own tiles.
pub(super) struct Output {
    /// Empty, with capacity for all of y.
    buffer: Vec<f32>,
    y: *mut f32,
    rows: usize,
    out: usize,
}

// SAFETY: `y` is only written by `write`, whose callers never write the same tile from two threads.
unsafe impl Sync for Output {}

impl Output {
    /// Creates an output in `buffer` if its capacity suffices, else in a new buffer.
    pub fn new(rows: usize, out: usize, mut buffer: Vec<f32>) -> Self {
        let size = rows * out;
        if buffer.capacity() < size {
            buffer = Vec::with_capacity(size);
        }
        buffer.clear();
        Self { y: buffer.as_mut_ptr(), buffer, rows, out }
    }

    /// Writes the sums of a tile with rows of x, starting at row `first`.
    ///
    /// # Safety
    /// - No two threads write the same tile of an output at the same time.
    ///   [`parallel_ranges`](crate::pool::parallel_ranges) gives each index to one thread.
    #[inline(always)]
    pub unsafe fn write(&self, tile: usize, first: usize, sums: &[[f32; TILE]]) {
        let start = tile * TILE;
        assert!(start < self.out && first + sums.len() <= self.rows);
        let width = TILE.min(self.out - start);
        for (row, sums) in (first..).zip(sums) {
            // SAFETY:
            // - `row < rows` and `start + width <= out`, so the range is inside the buffer.
            // - No other thread writes this tile, by the caller's guarantee.
            unsafe {
                let y = self.y.add(row * self.out + start);
                match width {
                    // A constant length, so that the copy is inlined: a call per tile took a
                    // hundredth of a pass.
                    TILE => y.copy_from_nonoverlapping(sums.as_ptr(), TILE),
                    _ => y.copy_from_nonoverlapping(sums.as_ptr(), width),
                }
            };
        }
    }

    /// Returns y.
    ///
    /// # Safety
    /// - Every tile was written with every row.
    pub unsafe fn assume_written(self) -> Vec<f32> {
        let Self { mut buffer, rows, out, .. } = self;
        // SAFETY: the capacity is at least `rows * out` (`new`), and all of it is initialized by
        // the caller's guarantee.
        unsafe { buffer.set_len(rows * out) };
        buffer
    }
}
