//! Matrix products with packed weights of 2 to 32 bits, which are most of the work of decoding.
//!
//! The cost of decoding is reading the weights, so fewer bits take less time. A product that packs
//! or streams the weights more than once makes a tree of eight nodes several times as expensive as
//! one token. Therefore:
//! - Weights are packed once, on loading, in the order in which products read them: tiles of 32
//!   rows (`tiles`), which threads share (`pool`).
//! - Weights in f32, bf16 and f16 are multiplied with inputs in f32 (`exact`).
//! - Quantized weights (`blocks` and `planes`, rounded in `quantise`) are multiplied with inputs
//!   rounded to 8 bits (`inputs`, `integer`), or in f32 (`exact`).
//!
//! Every product gives a row of inputs bitwise the same result, whatever other rows there are. So
//! trees of different shapes give a node the same logits.

mod block;
mod blocks;
mod exact;
mod file;
mod format;
mod inputs;
mod integer;
mod matrix;
mod output;
mod planes;
mod quantise;
mod read;
mod round;
mod tiles;

use std::convert::Infallible;

use crate::error::{Error, Result};
use crate::rows::Rows;
use block::Block;
use blocks::{Iq4Nl, Iq4Xs, Q4_0, Q4_1, Q4K, Q8_0};
use exact::{Bf16, F16, F32};
pub use format::Format;
use format::with_format;
use matrix::{Exact, Integer, Matrix, Selected, Tiled};
use planes::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};
use read::{ErrorSlot, Failed};
pub use read::{ReadBlocks, ReadRows};
use tiles::{Encode, Tiles};

/// A packed matrix `[out, in]`.
#[derive(Debug)]
pub struct Packed(Box<dyn Matrix>, Format);

impl Packed {
    /// Loads a matrix, one tile at a time on all threads. Numbers are rounded to `format`, unless
    /// the source has blocks of this format, which are loaded without loss.
    ///
    /// # Errors
    /// Rows that cannot be read.
    ///
    /// # Panics
    /// A number of columns that is not a multiple of [`Format::block_columns`].
    pub fn load<E: Send>(
        format: Format,
        out: usize,
        columns: usize,
        rows: impl ReadRows<E>,
    ) -> std::result::Result<Self, E> {
        let errors = ErrorSlot::new();
        let rows = &read::Rows::new(&rows, &errors);
        let loaded = Self::load_weighted(format, Source { out, columns, rows, weights: None });
        loaded.map_err(|failed| errors.take(failed))
    }

    fn load_weighted(format: Format, from: Source) -> std::result::Result<Self, Failed> {
        let columns = from.columns;
        assert!(columns.is_multiple_of(format.block_columns()), "{format} of {columns} columns");
        macro_rules! make {
            ($products:ident, $chunk:ident, $make:ident) => {
                $make::<$products<$chunk>>(from)?
            };
        }
        Ok(Self(with_format!(format, make), format))
    }

    /// Rounds the stored numbers to another format. `weights`, if given, are the weights of squared
    /// errors by column.
    pub fn rounded(&self, format: Format, weights: Option<&[f32]>) -> Self {
        let [out, columns] = self.0.shape();
        let weights = weights.filter(|weights| weights.len() == columns);
        let rows = &Selected { matrix: &*self.0, index: |row: usize| row };
        let rounded = Self::load_weighted(format, Source { out, columns, rows, weights });
        rounded.expect("rows in memory can be read")
    }

    /// Restores a matrix from the bytes of [`as_bytes`](Self::as_bytes). `read` takes an offset,
    /// and the bytes to fill from there.
    ///
    /// # Errors
    /// Bytes that cannot be read.
    pub fn from_bytes<E: Send>(
        format: Format,
        [out, columns]: [usize; 2],
        read: impl Fn(usize, &mut [u8]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<Self, E> {
        let errors = ErrorSlot::new();
        let read = |first: usize, bytes: &mut [u8]| {
            read(first, bytes).map_err(|error| errors.store(error))
        };
        let matrix = Self::restore(format, [out, columns], &read);
        matrix.map_err(|failed| errors.take(failed))
    }

    fn restore(
        format: Format,
        [out, columns]: [usize; 2],
        read: &ReadBytes,
    ) -> std::result::Result<Self, Failed> {
        macro_rules! make {
            ($products:ident, $chunk:ident, $make:ident) => {
                Box::new($products::new(Tiles::<$chunk>::from_bytes(out, columns, read)?))
            };
        }
        let matrix: Box<dyn Matrix> = with_format!(format, make);
        Ok(Self(matrix, format))
    }

    /// Returns the memory of the matrix, which is specific to this build and machine.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns `[out, in]`.
    pub fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Checks that row numbers are in range.
    fn check_rows(&self, ids: &[u32]) -> Result<()> {
        let [out, _] = self.0.shape();
        match ids.iter().find(|id| **id as usize >= out) {
            None => Ok(()),
            Some(id) => Err(Error::Shape {
                operation: "packed matrix",
                expected: format!("rows below {out}"),
                got: id.to_string(),
            }),
        }
    }

    /// Returns the rows with the given numbers in f32: `[ids, in]`.
    ///
    /// # Errors
    /// Row numbers out of range.
    pub fn rows(&self, ids: &[u32]) -> Result<Rows> {
        self.check_rows(ids)?;
        let [_, columns] = self.0.shape();
        let mut numbers = Vec::with_capacity(ids.len() * columns);
        ids.iter().for_each(|id| self.0.row(*id as usize, &mut numbers));
        Ok(Rows::new(numbers, columns))
    }

    /// Copies the rows with the given numbers to a new matrix. It has the same format if numbers
    /// can be rounded to it, else `Q8_0`.
    ///
    /// # Errors
    /// Row numbers out of range.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        self.check_rows(ids)?;
        let [_, columns] = self.0.shape();
        let format = if self.1.is_only_read() { Format::Q8_0 } else { self.1 };
        let rows = Selected { matrix: &*self.0, index: |row: usize| ids[row] as usize };
        match Self::load::<Infallible>(format, ids.len(), columns, rows) {
            Ok(selected) => Ok(selected),
            Err(never) => match never {},
        }
    }

    /// Returns the product y `[rows, out]` for x `[rows, in]`.
    ///
    /// # Panics
    /// An x of another length.
    pub fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.0.shape()[1]);
        self.0.product(x, rows, Vec::new())
    }

    /// Returns the product with rows of inputs.
    ///
    /// # Errors
    /// Rows of another width.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        self.forward_into(x, Vec::new())
    }

    /// Returns the product with rows of inputs, in `buffer` if its capacity suffices. Previous
    /// contents of the buffer are discarded.
    ///
    /// # Errors
    /// Rows of another width.
    pub fn forward_into(&self, x: &Rows, buffer: Vec<f32>) -> Result<Rows> {
        let [out, columns] = self.0.shape();
        if x.width() != columns {
            return Err(Error::Shape {
                operation: "packed product",
                expected: format!("{columns} columns"),
                got: x.width().to_string(),
            });
        }
        Ok(Rows::new(self.0.product(x.numbers(), x.count(), buffer), out))
    }
}

/// Reads bytes, starting at an offset.
type ReadBytes<'a> = dyn Fn(usize, &mut [u8]) -> std::result::Result<(), Failed> + Sync + 'a;

/// Source of a matrix, with its shape.
struct Source<'a> {
    out: usize,
    columns: usize,
    rows: &'a dyn ReadRows<Failed>,
    /// Weights of squared errors, by column.
    weights: Option<&'a [f32]>,
}

/// Loads formats without blocks: each number is stored, or rounded, on its own.
fn plain<M: Tiled<Chunk: Encode>>(
    Source { out, columns, rows, weights }: Source,
) -> std::result::Result<Box<dyn Matrix>, Failed> {
    Ok(Box::new(M::new(Tiles::load(out, columns, rows, weights)?)))
}

/// Loads quantized formats that numbers can be rounded to.
fn rounded<M: Tiled<Chunk: Block + Encode>>(
    Source { out, columns, rows, weights }: Source,
) -> std::result::Result<Box<dyn Matrix>, Failed> {
    Ok(Box::new(M::new(Tiles::load_blocks_or_round(out, columns, rows, weights)?)))
}

/// Loads formats that only files have. Sources without such blocks are loaded in f32.
fn from_blocks<M: Tiled<Chunk: Block>>(
    Source { out, columns, rows, .. }: Source,
) -> std::result::Result<Box<dyn Matrix>, Failed> {
    Ok(match rows.blocks(<M::Chunk as Block>::KIND) {
        Some(blocks) => Box::new(M::new(Tiles::from_file(out, columns, blocks)?)),
        None => Box::new(Exact::new(Tiles::<F32>::load(out, columns, rows, None)?)),
    })
}

#[cfg(test)]
mod tests;
