//! A matrix in tiles: thirty-two rows side by side, so that a product has no sum across a vector.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use pulp::Arch;
use rayon::prelude::*;

use super::read::ReadRows;
use crate::memory::ArenaSlice;

/// Rows of a matrix side by side.
pub(super) const TILE: usize = 32;
/// Columns that are packed together: of 32 rows at a time this is little enough for the fastest
/// cache.
const TOGETHER: usize = 64;

/// A few columns of a tile's rows.
///
/// # Safety
/// It lies in memory without gaps, and any bytes there are one.
pub(super) unsafe trait Piece:
    Copy + Send + Sync + std::fmt::Debug + 'static
{
    const COLUMNS: usize;
    const ZERO: Self;

    /// A row's numbers, `COLUMNS` of them.
    fn get(&self, row: usize, values: &mut [f32]);
}

/// A piece that any numbers can be put into, rounded to its format.
pub(super) trait Fill: Piece {
    /// What rows are read in.
    type Value: Copy + Default + Send;

    /// Reads whole rows from row `first` on.
    fn read<E>(
        rows: &(impl ReadRows<E> + ?Sized),
        first: usize,
        values: &mut [Self::Value],
    ) -> Result<(), E>;

    /// Puts a row's numbers in their place; where there are fewer than [`Piece::COLUMNS`], zeros
    /// follow them. Where weights are given, one a number, and scales can be searched for, those
    /// that lose least count.
    fn set(&mut self, row: usize, values: &[Self::Value], weights: Option<&[f32]>);
}

/// A matrix `[out, columns]` of tiles; in each, its pieces from the first column to the last.
#[derive(Debug)]
pub(super) struct Tiles<P> {
    pieces: ArenaSlice<P>,
    pub out: usize,
    pub columns: usize,
}

impl<P: Piece> Tiles<P> {
    /// Makes a tile at a time, on all threads, each straight in its place.
    ///
    /// `fill` takes the first row, the number of rows, room of its thread's own and the tile's
    /// pieces, which are zero.
    pub fn build<E: Send, T: Send>(
        out: usize,
        columns: usize,
        room: impl Fn() -> T + Sync + Send,
        fill: impl Fn(usize, usize, &mut T, &mut [P]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let per_tile = columns.div_ceil(P::COLUMNS);
        let count = out.div_ceil(TILE) * per_tile;
        let mut pieces = ArenaSlice::new(count);
        pieces.par_chunks_exact_mut(per_tile.max(1)).enumerate().try_for_each_init(
            room,
            |room, (tile, empty)| {
                empty.iter_mut().for_each(|piece| {
                    piece.write(P::ZERO);
                });
                let first = tile * TILE;
                fill(first, TILE.min(out - first), room, written(empty))
            },
        )?;
        // SAFETY: every piece was written: the chunks cover them all.
        let pieces = unsafe { pieces.assume_init() };
        Ok(Self { pieces, out, columns })
    }

    /// Reads rows, and rounds them to the format of the pieces, errors weighed by column if
    /// `weights` are given.
    pub fn load<E: Send>(
        out: usize,
        columns: usize,
        rows: &(impl ReadRows<E> + ?Sized),
        weights: Option<&[f32]>,
    ) -> Result<Self, E>
    where
        P: Fill,
    {
        Self::build(out, columns, Vec::new, |first, count, values, pieces| {
            values.resize(count * columns, P::Value::default());
            P::read(rows, first, values)?;
            // With the widest vectors of this CPU.
            Arch::new().dispatch(Pack { pieces, values, columns, weights });
            Ok(())
        })
    }

    /// A matrix as it lay in memory before ([`as_bytes`](Self::as_bytes)), a tile at a time on all
    /// threads: `read` takes the place of the first byte and the bytes.
    pub fn from_bytes<E: Send>(
        out: usize,
        columns: usize,
        read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        Self::build(
            out,
            columns,
            || (),
            |first, _, (), pieces| {
                let size = size_of_val(pieces);
                // SAFETY: the same memory, of pieces without gaps that any bytes are.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(pieces.as_mut_ptr().cast::<u8>(), size)
                };
                read(first / TILE * size, bytes)
            },
        )
    }

    /// The pieces as they lie in memory.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: all of it was written, for pieces have no gaps.
        unsafe { std::slice::from_raw_parts(self.pieces.as_ptr().cast(), self.bytes()) }
    }

    /// The pieces of a tile.
    pub fn tile(&self, tile: usize) -> &[P] {
        let count = self.columns.div_ceil(P::COLUMNS);
        &self.pieces[tile * count..][..count]
    }

    /// How many there are.
    pub fn tiles(&self) -> usize {
        self.out.div_ceil(TILE)
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.pieces[..])
    }

    /// Appends a row in f32.
    pub fn row(&self, row: usize, values: &mut Vec<f32>) {
        let start = values.len();
        for piece in self.tile(row / TILE) {
            let end = values.len();
            values.resize(end + P::COLUMNS, 0.0);
            piece.get(row % TILE, &mut values[end..]);
        }
        values.truncate(start + self.columns);
    }
}

/// Pieces that were written.
fn written<P: Copy>(pieces: &mut [MaybeUninit<P>]) -> &mut [P] {
    // SAFETY: the only caller has just written each of them, and `MaybeUninit<P>` lies in memory as
    // `P` does.
    unsafe { &mut *(std::ptr::from_mut(pieces) as *mut [P]) }
}

/// Rows `[rows, columns]` into a tile.
struct Pack<'a, P: Fill> {
    pieces: &'a mut [P],
    values: &'a [P::Value],
    columns: usize,
    /// By column.
    weights: Option<&'a [f32]>,
}

impl<P: Fill> pulp::NullaryFnOnce for Pack<'_, P> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { pieces, values, columns, weights } = self;
        let together = (TOGETHER / P::COLUMNS).max(1);
        for (number, pieces) in pieces.chunks_mut(together).enumerate() {
            let first = number * together * P::COLUMNS;
            let weights = weights.map(|weights| &weights[first..]);
            for (row, values) in values.chunks_exact(columns).enumerate() {
                let values = values[first..].chunks(P::COLUMNS);
                // Loops, for closures have no vectors to round with.
                match weights {
                    None => {
                        for (piece, values) in pieces.iter_mut().zip(values) {
                            piece.set(row, values, None);
                        }
                    }
                    Some(weights) => {
                        let weighed = values.zip(weights.chunks(P::COLUMNS));
                        for (piece, (values, weights)) in pieces.iter_mut().zip(weighed) {
                            piece.set(row, values, Some(weights));
                        }
                    }
                }
            }
        }
    }
}
