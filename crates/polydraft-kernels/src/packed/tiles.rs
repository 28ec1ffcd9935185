//! Tiles: the packed layout of matrices.
//!
//! A tile holds 32 rows of a matrix, interleaved: lanes of a vector are rows. So a product never
//! sums across a vector. A tile is divided into chunks of a few columns, whose layout depends on
//! the format.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use pulp::Arch;
use rayon::prelude::*;

use super::read::ReadRows;
use crate::memory::ArenaSlice;

/// Number of rows of a tile.
pub(super) const TILE: usize = 32;
/// Number of columns that are packed at a time. For 32 rows these fit into the L1 cache.
const PACK_COLUMNS: usize = 64;

/// A few columns of the rows of a tile.
///
/// # Safety
/// - The type has no padding.
/// - Every bit pattern is a valid value.
pub(super) unsafe trait Chunk:
    Copy + Send + Sync + std::fmt::Debug + 'static
{
    const COLUMNS: usize;
    const ZERO: Self;

    /// Writes the `COLUMNS` numbers of a row to `values`.
    fn get(&self, row: usize, values: &mut [f32]);
}

/// A chunk that arbitrary numbers can be rounded to.
pub(super) trait Encode: Chunk {
    /// Number type in which rows are read.
    type Value: Copy + Default + Send;

    /// Reads full rows, starting at row `first`.
    fn read<E>(
        rows: &(impl ReadRows<E> + ?Sized),
        first: usize,
        values: &mut [Self::Value],
    ) -> Result<(), E>;

    /// Stores a row's numbers, padded with zeros to [`Chunk::COLUMNS`]. With weights of squared
    /// errors, one per number, formats with scales search the scale with the least error.
    fn set(&mut self, row: usize, values: &[Self::Value], weights: Option<&[f32]>);
}

/// A matrix `[out, columns]`, tile by tile; the chunks of a tile are in the order of columns.
#[derive(Debug)]
pub(super) struct Tiles<P> {
    chunks: ArenaSlice<P>,
    pub out: usize,
    pub columns: usize,
}

impl<P: Chunk> Tiles<P> {
    /// Builds tiles on all threads, in place.
    ///
    /// `fill` takes the first row of a tile, its number of rows, the thread's scratch value (from
    /// `scratch`) and the tile's chunks, which are zeroed.
    pub fn build<E: Send, T: Send>(
        out: usize,
        columns: usize,
        scratch: impl Fn() -> T + Sync + Send,
        fill: impl Fn(usize, usize, &mut T, &mut [P]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let per_tile = columns.div_ceil(P::COLUMNS);
        let count = out.div_ceil(TILE) * per_tile;
        let mut chunks = ArenaSlice::new(count);
        chunks.par_chunks_exact_mut(per_tile.max(1)).enumerate().try_for_each_init(
            scratch,
            |scratch, (tile, empty)| {
                empty.iter_mut().for_each(|chunk| {
                    chunk.write(P::ZERO);
                });
                let first = tile * TILE;
                fill(first, TILE.min(out - first), scratch, assume_init(empty))
            },
        )?;
        // SAFETY: every chunk was written: the slices of the tiles cover all of them.
        let chunks = unsafe { chunks.assume_init() };
        Ok(Self { chunks, out, columns })
    }

    /// Reads rows and rounds them to the format of the chunks. `weights`, if given, are the weights
    /// of squared errors by column.
    pub fn load<E: Send>(
        out: usize,
        columns: usize,
        rows: &(impl ReadRows<E> + ?Sized),
        weights: Option<&[f32]>,
    ) -> Result<Self, E>
    where
        P: Encode,
    {
        Self::build(out, columns, Vec::new, |first, count, values, chunks| {
            values.resize(count * columns, P::Value::default());
            P::read(rows, first, values)?;
            // Compiled for the widest vectors of this CPU.
            Arch::new().dispatch(Pack { chunks, values, columns, weights });
            Ok(())
        })
    }

    /// Restores a matrix from the bytes of [`as_bytes`](Self::as_bytes), one tile at a time on all
    /// threads. `read` takes an offset, and the bytes to fill from there.
    pub fn from_bytes<E: Send>(
        out: usize,
        columns: usize,
        read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        Self::build(
            out,
            columns,
            || (),
            |first, _, (), chunks| {
                let size = size_of_val(chunks);
                // SAFETY: the same memory as bytes; `Chunk` guarantees no padding, and that any
                // bytes are valid.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(chunks.as_mut_ptr().cast::<u8>(), size)
                };
                read(first / TILE * size, bytes)
            },
        )
    }

    /// Returns the memory of the chunks.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: all bytes are initialized, because `Chunk` guarantees no padding.
        unsafe { std::slice::from_raw_parts(self.chunks.as_ptr().cast(), self.bytes()) }
    }

    /// Returns the chunks of a tile.
    pub fn tile(&self, tile: usize) -> &[P] {
        let count = self.columns.div_ceil(P::COLUMNS);
        &self.chunks[tile * count..][..count]
    }

    /// Returns the number of tiles.
    pub fn tiles(&self) -> usize {
        self.out.div_ceil(TILE)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.chunks[..])
    }

    /// Appends a row in f32 to `values`.
    pub fn row(&self, row: usize, values: &mut Vec<f32>) {
        let start = values.len();
        for chunk in self.tile(row / TILE) {
            let end = values.len();
            values.resize(end + P::COLUMNS, 0.0);
            chunk.get(row % TILE, &mut values[end..]);
        }
        values.truncate(start + self.columns);
    }
}

/// Converts chunks that were written to initialized ones.
fn assume_init<P: Copy>(chunks: &mut [MaybeUninit<P>]) -> &mut [P] {
    // SAFETY:
    // - The only caller has just written every chunk.
    // - `MaybeUninit<P>` has the layout of `P`.
    unsafe { &mut *(std::ptr::from_mut(chunks) as *mut [P]) }
}

/// Packs rows `[rows, columns]` into a tile.
struct Pack<'a, P: Encode> {
    chunks: &'a mut [P],
    values: &'a [P::Value],
    columns: usize,
    /// Weights of squared errors, by column.
    weights: Option<&'a [f32]>,
}

impl<P: Encode> pulp::NullaryFnOnce for Pack<'_, P> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { chunks, values, columns, weights } = self;
        let count = (PACK_COLUMNS / P::COLUMNS).max(1);
        for (number, chunks) in chunks.chunks_mut(count).enumerate() {
            let first = number * count * P::COLUMNS;
            let weights = weights.map(|weights| &weights[first..]);
            for (row, values) in values.chunks_exact(columns).enumerate() {
                let values = values[first..].chunks(P::COLUMNS);
                // Loops, because closures do not inherit target features.
                match weights {
                    None => {
                        for (chunk, values) in chunks.iter_mut().zip(values) {
                            chunk.set(row, values, None);
                        }
                    }
                    Some(weights) => {
                        let weighted = values.zip(weights.chunks(P::COLUMNS));
                        for (chunk, (values, weights)) in chunks.iter_mut().zip(weighted) {
                            chunk.set(row, values, Some(weights));
                        }
                    }
                }
            }
        }
    }
}
