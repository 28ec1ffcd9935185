//! Where threads leave their parts of a product.
//!
//! It is not filled with zeros first: for a long prompt that would be a tenth of the time, on one
//! thread while the others wait.

#![allow(unsafe_code)]

use super::tiles::TILE;

/// y `[rows, out]`, written by several threads, each its own tiles.
pub(super) struct Output {
    /// Of no length, with room for all.
    room: Vec<f32>,
    y: *mut f32,
    rows: usize,
    out: usize,
}

// SAFETY: threads write through it only by `put`, which no two of them call for the same tile.
unsafe impl Sync for Output {}

impl Output {
    /// In `room`, if it is large enough.
    pub fn new(rows: usize, out: usize, mut room: Vec<f32>) -> Self {
        let size = rows * out;
        if room.capacity() < size {
            room = Vec::with_capacity(size);
        }
        room.clear();
        Self { y: room.as_mut_ptr(), room, rows, out }
    }

    /// Leaves a tile's sums with some rows of x, from row `first` on.
    ///
    /// # Safety
    /// No two threads may write the same tile of one output. ([`crate::pool::parallel_ranges`] gives each
    /// number to one thread.)
    #[inline(always)]
    pub unsafe fn put(&self, tile: usize, first: usize, sums: &[[f32; TILE]]) {
        let start = tile * TILE;
        assert!(start < self.out && first + sums.len() <= self.rows);
        let wide = TILE.min(self.out - start);
        for (row, sums) in (first..).zip(sums) {
            // SAFETY: `row < rows` and `start + wide <= out`, so it lies in the room, which nothing
            // else touches; other threads write other tiles, as the caller promised.
            unsafe {
                let y = self.y.add(row * self.out + start);
                match wide {
                    // So that the compiler writes it out: a call for every tile would cost a
                    // hundredth of a pass.
                    TILE => y.copy_from_nonoverlapping(sums.as_ptr(), TILE),
                    _ => y.copy_from_nonoverlapping(sums.as_ptr(), wide),
                }
            };
        }
    }

    /// The numbers.
    ///
    /// # Safety
    /// Every tile was put with every row.
    pub unsafe fn written(self) -> Vec<f32> {
        let Self { mut room, rows, out, .. } = self;
        // SAFETY: so many were allocated, and written as the caller promises.
        unsafe { room.set_len(rows * out) };
        room
    }
}
