//! Products with a large matrix, stored in 32, 16, 8 or 4 bits: most of the work of decoding.
//!
//! Reading the weights is the cost of decoding. A product that packs or streams them more than once
//! makes a tree of eight nodes several times as dear as one token, and fewer bits are less time. So
//! they are laid out once, on loading, as the products want them (`tiles`): in f32, bf16 or f16
//! (`exact`), or in blocks of integers (`blocks` and `planes`, rounded in `quantise`), for products
//! with inputs in f32 (`exact`) or rounded to 8 bits too (`inputs`, `integer`). Threads share the
//! tiles (`pool`). Every product gives a row of inputs the same result, to the bit, whatever other
//! rows there are: trees of different shapes give a node the same logits.

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
use read::{Aside, Lost};
pub use read::{ReadBlocks, ReadRows};
use tiles::{Fill, Tiles};

/// A matrix `[out, in]`, and how it is stored.
#[derive(Debug)]
pub struct Packed(Box<dyn Matrix>, Format);

impl Packed {
    /// Reads rows, a tile at a time on all threads, straight into their place; formats of fewer
    /// bits round them, unless they lie in the file in the same blocks.
    ///
    /// # Errors
    /// Rows that cannot be read.
    ///
    /// # Panics
    /// Columns that are no multiple of the format's [`Format::block_columns`].
    pub fn load<E: Send>(
        format: Format,
        out: usize,
        columns: usize,
        rows: impl ReadRows<E>,
    ) -> std::result::Result<Self, E> {
        let errors = Aside::new();
        let rows = &read::Rows::new(&rows, &errors);
        let loaded = Self::load_weighed(format, Source { out, columns, rows, weights: None });
        loaded.map_err(|lost| errors.found(lost))
    }

    fn load_weighed(format: Format, from: Source) -> std::result::Result<Self, Lost> {
        let columns = from.columns;
        assert!(columns.is_multiple_of(format.block_columns()), "{format} of {columns} columns");
        macro_rules! make {
            ($products:ident, $piece:ident, $make:ident) => {
                $make::<$products<$piece>>(from)?
            };
        }
        Ok(Self(with_format!(format, make), format))
    }

    /// The stored numbers, rounded to another format; errors count by column as `weights` say, if
    /// they are given.
    pub fn rounded(&self, format: Format, weights: Option<&[f32]>) -> Self {
        let [out, columns] = self.0.shape();
        let weights = weights.filter(|weights| weights.len() == columns);
        let rows = &Selected { of: &*self.0, numbers: |row: usize| row };
        let rounded = Self::load_weighed(format, Source { out, columns, rows, weights });
        rounded.expect("rows in memory can be read")
    }

    /// A matrix as it lay in memory before ([`as_bytes`](Self::as_bytes)): `read` takes the place
    /// of the first byte and the bytes.
    ///
    /// # Errors
    /// Bytes that cannot be read.
    pub fn from_bytes<E: Send>(
        format: Format,
        [out, columns]: [usize; 2],
        read: impl Fn(usize, &mut [u8]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<Self, E> {
        let errors = Aside::new();
        let read =
            |first: usize, bytes: &mut [u8]| read(first, bytes).map_err(|error| errors.keep(error));
        let matrix = Self::made_of(format, [out, columns], &read);
        matrix.map_err(|lost| errors.found(lost))
    }

    fn made_of(
        format: Format,
        [out, columns]: [usize; 2],
        read: &ReadBytes,
    ) -> std::result::Result<Self, Lost> {
        macro_rules! make {
            ($products:ident, $piece:ident, $make:ident) => {
                Box::new($products::of(Tiles::<$piece>::from_bytes(out, columns, read)?))
            };
        }
        let matrix: Box<dyn Matrix> = with_format!(format, make);
        Ok(Self(matrix, format))
    }

    /// As it lies in memory: for this program on this machine.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Rows, and the width of one.
    pub fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// That these are numbers of rows.
    fn check(&self, ids: &[u32]) -> Result<()> {
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

    /// The rows of the matrix at `ids [n]`: `[n, in]`.
    ///
    /// # Errors
    /// Rows that it does not have.
    pub fn rows(&self, ids: &[u32]) -> Result<Rows> {
        self.check(ids)?;
        let [_, columns] = self.0.shape();
        let mut numbers = Vec::with_capacity(ids.len() * columns);
        ids.iter().for_each(|id| self.0.row(*id as usize, &mut numbers));
        Ok(Rows::new(numbers, columns))
    }

    /// The rows at `ids` as a matrix of their own, stored in the same format where numbers can be
    /// rounded to it, else in `Q8_0`.
    ///
    /// # Errors
    /// Rows that it does not have.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        self.check(ids)?;
        let [_, columns] = self.0.shape();
        let format = if self.1.is_only_read() { Format::Q8_0 } else { self.1 };
        let rows = Selected { of: &*self.0, numbers: |row: usize| ids[row] as usize };
        match Self::load::<Infallible>(format, ids.len(), columns, rows) {
            Ok(selected) => Ok(selected),
            Err(never) => match never {},
        }
    }

    /// y `[rows, out]` for x `[rows, in]`.
    ///
    /// # Panics
    /// An x of another length.
    pub fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.0.shape()[1]);
        self.0.product(x, rows, Vec::new())
    }

    /// Likewise.
    ///
    /// # Errors
    /// Rows of another width.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        self.forward_into(x, Vec::new())
    }

    /// Likewise, in `room` where that is large enough; what it holds is lost.
    ///
    /// # Errors
    /// Rows of another width.
    pub fn forward_into(&self, x: &Rows, room: Vec<f32>) -> Result<Rows> {
        let [out, columns] = self.0.shape();
        if x.width() != columns {
            return Err(Error::Shape {
                operation: "packed product",
                expected: format!("{columns} columns"),
                got: x.width().to_string(),
            });
        }
        Ok(Rows::new(self.0.product(x.numbers(), x.count(), room), out))
    }
}

/// Reads bytes from a place on.
type ReadBytes<'a> = dyn Fn(usize, &mut [u8]) -> std::result::Result<(), Lost> + Sync + 'a;

/// What a matrix is made of.
struct Source<'a> {
    out: usize,
    columns: usize,
    rows: &'a dyn ReadRows<Lost>,
    /// How much errors count, by column.
    weights: Option<&'a [f32]>,
}

/// Formats in which every number of the file can be stored, at most rounded by itself.
fn plain<M: Tiled<Piece: Fill>>(
    Source { out, columns, rows, weights }: Source,
) -> std::result::Result<Box<dyn Matrix>, Lost> {
    Ok(Box::new(M::of(Tiles::load(out, columns, rows, weights)?)))
}

/// In blocks as a file has them, or rounded to such.
fn rounded<M: Tiled<Piece: Block + Fill>>(
    Source { out, columns, rows, weights }: Source,
) -> std::result::Result<Box<dyn Matrix>, Lost> {
    Ok(Box::new(M::of(Tiles::held(out, columns, rows, weights)?)))
}

/// In blocks as a file has them; in f32 what it has otherwise.
fn filed<M: Tiled<Piece: Block>>(
    Source { out, columns, rows, .. }: Source,
) -> std::result::Result<Box<dyn Matrix>, Lost> {
    Ok(match rows.blocks(<M::Piece as Block>::KIND) {
        Some(blocks) => Box::new(M::of(Tiles::from_file(out, columns, blocks)?)),
        None => Box::new(Exact::of(Tiles::<F32>::load(out, columns, rows, None)?)),
    })
}

#[cfg(test)]
mod tests;
