//! Where threads leave their parts of a product.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::tiles::TILE;

/// y `[rows, out]`, written by several threads, each its own tiles.
pub(super) struct Output<'a> {
    y: *mut f32,
    rows: usize,
    out: usize,
    borrowed: PhantomData<&'a mut [f32]>,
}

// SAFETY: threads write through it only by `put`, which no two of them call for the same tile.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    pub fn new(y: &'a mut [f32], rows: usize, out: usize) -> Self {
        assert_eq!(y.len(), rows * out);
        Self { y: y.as_mut_ptr(), rows, out, borrowed: PhantomData }
    }

    /// Leaves a tile's sums with some rows of x, from row `first` on.
    ///
    /// # Safety
    /// No two threads may write the same tile of one output. ([`super::pool::split`] gives each number to one thread.)
    #[inline(always)]
    pub unsafe fn put(&self, tile: usize, first: usize, sums: &[[f32; TILE]]) {
        let start = tile * TILE;
        assert!(start < self.out && first + sums.len() <= self.rows);
        let wide = TILE.min(self.out - start);
        for (row, sums) in (first..).zip(sums) {
            // SAFETY: `row < rows` and `start + wide <= out`, so it lies in y, which nobody else may touch while it is
            // borrowed here; other threads write other tiles, as the caller promised.
            let y = unsafe { std::slice::from_raw_parts_mut(self.y.add(row * self.out + start), wide) };
            y.copy_from_slice(&sums[..wide]);
        }
    }
}
