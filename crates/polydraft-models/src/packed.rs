//! Products with a large matrix, held in 32, 16, 8 or 4 bits: what decoding does all day.
//!
//! Reading the weights is the cost of decoding. A product that packs or streams them more than once
//! makes a tree of eight nodes several times as dear as one token, and fewer bits are less time. So
//! they are laid out once, on loading, as the products want them ([`tiles`]): in f32, bf16 or f16
//! ([`exact`]), or in blocks of integers ([`blocks`], rounded in [`quantise`]; [`planes`]), for
//! products with inputs in f32 ([`exact`]) or rounded to 8 bits too ([`inputs`], [`integer`]).
//! Threads share the tiles ([`pool`]). Every product gives a row of inputs the same result, to the
//! bit, in whatever company it comes: trees of different shapes give a node the same logits.

mod blocks;
mod exact;
pub(crate) mod fetch;
mod file;
mod inputs;
mod integer;
mod memory;
mod output;
mod planes;
pub(crate) mod pool;
mod probe;
mod quantise;
mod search;
pub(crate) mod stack;
mod tiles;

use std::convert::Infallible;
use std::fmt::Debug;

use candle_core::{Result, bail};
use half::{bf16, f16};

use blocks::{Block, Q4_0, Q4_1, Q4K, Q8_0};

use crate::rows::Rows;
pub(crate) use blocks::widened;
use exact::{Bf16, F16, F32, Words};
use planes::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};
use polydraft_gguf::TensorType;
#[doc(hidden)]
pub use probe::ProductProbe;
pub(crate) use tiles::{Blocks, Read};
use tiles::{Piece, TILE, Tiles};

/// How a matrix is held, and multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
    Bf16,
    F16,
    /// Products in f32.
    Q8_0F32,
    /// These in integers.
    Q8_0,
    Q4_0,
    Q4_1,
    Q4K,
    Q5_1,
    /// These too, as a file has them, and only so: nothing is rounded to these.
    Q5_0,
    Q2K,
    Q3K,
    Q5K,
    Q6K,
}

impl Format {
    /// What a block of a file is held in, where nothing is lost; f32 for types that have no blocks
    /// here.
    pub fn of_file(kind: TensorType) -> Self {
        match kind {
            TensorType::F16 => Self::F16,
            TensorType::BF16 => Self::Bf16,
            TensorType::Q8_0 => Self::Q8_0,
            TensorType::Q4_0 => Self::Q4_0,
            TensorType::Q4_1 => Self::Q4_1,
            TensorType::Q4_K => Self::Q4K,
            TensorType::Q5_0 => Self::Q5_0,
            TensorType::Q5_1 => Self::Q5_1,
            TensorType::Q2_K => Self::Q2K,
            TensorType::Q3_K => Self::Q3K,
            TensorType::Q5_K => Self::Q5K,
            TensorType::Q6_K => Self::Q6K,
            _ => Self::F32,
        }
    }

    /// Columns must be a multiple of this.
    pub fn unit(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            _ => self.piece().0,
        }
    }

    /// Columns of a piece of a tile, and its bytes.
    fn piece(self) -> (usize, usize) {
        fn of<P: Piece>() -> (usize, usize) {
            (P::COLUMNS, size_of::<P>())
        }
        match self {
            Self::F32 => of::<F32>(),
            Self::Bf16 => of::<Bf16>(),
            Self::F16 => of::<F16>(),
            Self::Q8_0F32 | Self::Q8_0 => of::<Q8_0>(),
            Self::Q4_0 => of::<Q4_0>(),
            Self::Q4_1 => of::<Q4_1>(),
            Self::Q4K => of::<Q4K>(),
            Self::Q5_0 => of::<Q5_0>(),
            Self::Q5_1 => of::<Q5_1>(),
            Self::Q2K => of::<Q2K>(),
            Self::Q3K => of::<Q3K>(),
            Self::Q5K => of::<Q5K>(),
            Self::Q6K => of::<Q6K>(),
        }
    }

    /// Bytes that so many rows take: tiles are whole.
    pub fn bytes(self, rows: usize, columns: usize) -> u64 {
        let (width, bytes) = self.piece();
        let pieces = (rows.div_ceil(TILE) as u64).saturating_mul(columns.div_ceil(width) as u64);
        pieces.saturating_mul(bytes as u64)
    }
}

/// A matrix `[out, in]`, and how it is held.
#[derive(Debug)]
pub(crate) struct Packed(Box<dyn Matrix>, Format);

/// What a matrix can do, however it is held.
trait Matrix: Debug + Send + Sync {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];
    fn bytes(&self) -> usize;
    /// As it lies in memory.
    fn as_bytes(&self) -> &[u8];
    /// Appends a row in f32.
    fn row(&self, row: usize, values: &mut Vec<f32>);
    /// y `[rows, out]` for x `[rows, in]`.
    fn product(&self, x: &[f32], rows: usize) -> Vec<f32>;
}

/// With products in f32.
#[derive(Debug)]
struct Exact<P>(Tiles<P>);

/// With products in integers.
#[derive(Debug)]
struct Integer<P>(Tiles<P>);

macro_rules! matrix {
    ($name:ident, $bound:ident, $product:path) => {
        impl<P: $bound> Matrix for $name<P> {
            fn shape(&self) -> [usize; 2] {
                [self.0.out, self.0.columns]
            }

            fn bytes(&self) -> usize {
                self.0.bytes()
            }

            fn as_bytes(&self) -> &[u8] {
                self.0.as_bytes()
            }

            fn row(&self, row: usize, values: &mut Vec<f32>) {
                self.0.row(row, values);
            }

            fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
                $product(&self.0, x, rows)
            }
        }
    };
}
matrix!(Exact, Words, exact::product);
matrix!(Integer, Block, integer::product);

impl Packed {
    /// Reads rows, a tile at a time on all threads, straight into their place; formats of fewer
    /// bits round them, unless they lie in the file in the same blocks.
    ///
    /// The columns must be a multiple of the format's [`Format::unit`].
    pub fn load<E: Send>(
        format: Format,
        out: usize,
        columns: usize,
        rows: impl Read<E>,
    ) -> std::result::Result<Self, E> {
        Self::load_weighed(format, out, columns, rows, None)
    }

    /// Likewise; where scales can be searched for, errors count by column as `weights` say.
    fn load_weighed<E: Send>(
        format: Format,
        out: usize,
        columns: usize,
        rows: impl Read<E>,
        weights: Option<&[f32]>,
    ) -> std::result::Result<Self, E> {
        assert!(columns.is_multiple_of(format.unit()), "{format:?} of {columns} columns");
        let rows = &rows;
        let matrix: Box<dyn Matrix> = match format {
            Format::F32 => Box::new(Exact(Tiles::<F32>::load(out, columns, rows, weights)?)),
            Format::Bf16 => Box::new(Exact(Tiles::<Bf16>::load(out, columns, rows, weights)?)),
            Format::F16 => Box::new(Exact(Tiles::<F16>::load(out, columns, rows, weights)?)),
            Format::Q8_0F32 => Box::new(Exact(Tiles::<Q8_0>::held(out, columns, rows, weights)?)),
            Format::Q8_0 => Box::new(Integer(Tiles::<Q8_0>::held(out, columns, rows, weights)?)),
            Format::Q4_0 => Box::new(Integer(Tiles::<Q4_0>::held(out, columns, rows, weights)?)),
            Format::Q4_1 => Box::new(Integer(Tiles::<Q4_1>::held(out, columns, rows, weights)?)),
            Format::Q4K => Box::new(Integer(Tiles::<Q4K>::held(out, columns, rows, weights)?)),
            Format::Q5_1 => Box::new(Integer(Tiles::<Q5_1>::held(out, columns, rows, weights)?)),
            Format::Q5_0 => as_filed::<Q5_0, E>(out, columns, rows)?,
            Format::Q2K => as_filed::<Q2K, E>(out, columns, rows)?,
            Format::Q3K => as_filed::<Q3K, E>(out, columns, rows)?,
            Format::Q5K => as_filed::<Q5K, E>(out, columns, rows)?,
            Format::Q6K => as_filed::<Q6K, E>(out, columns, rows)?,
        };
        Ok(Self(matrix, format))
    }

    /// The numbers that are held, rounded to another format; errors count by column as `weights`
    /// say, if they are given.
    pub fn rounded(&self, format: Format, weights: Option<&[f32]>) -> Self {
        let [out, columns] = self.0.shape();
        let weights = weights.filter(|weights| weights.len() == columns);
        match Self::load_weighed::<Infallible>(format, out, columns, Held(&*self.0), weights) {
            Ok(rounded) => rounded,
            Err(never) => match never {},
        }
    }

    /// A matrix as it lay in memory before ([`as_bytes`](Self::as_bytes)): `read` takes the place
    /// of the first byte and the bytes.
    pub fn of_bytes<E: Send>(
        format: Format,
        [out, columns]: [usize; 2],
        read: impl Fn(usize, &mut [u8]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<Self, E> {
        let matrix: Box<dyn Matrix> = match format {
            Format::F32 => Box::new(Exact(Tiles::<F32>::of_bytes(out, columns, read)?)),
            Format::Bf16 => Box::new(Exact(Tiles::<Bf16>::of_bytes(out, columns, read)?)),
            Format::F16 => Box::new(Exact(Tiles::<F16>::of_bytes(out, columns, read)?)),
            Format::Q8_0F32 => Box::new(Exact(Tiles::<Q8_0>::of_bytes(out, columns, read)?)),
            Format::Q8_0 => Box::new(Integer(Tiles::<Q8_0>::of_bytes(out, columns, read)?)),
            Format::Q4_0 => Box::new(Integer(Tiles::<Q4_0>::of_bytes(out, columns, read)?)),
            Format::Q4_1 => Box::new(Integer(Tiles::<Q4_1>::of_bytes(out, columns, read)?)),
            Format::Q4K => Box::new(Integer(Tiles::<Q4K>::of_bytes(out, columns, read)?)),
            Format::Q5_1 => Box::new(Integer(Tiles::<Q5_1>::of_bytes(out, columns, read)?)),
            Format::Q5_0 => Box::new(Integer(Tiles::<Q5_0>::of_bytes(out, columns, read)?)),
            Format::Q2K => Box::new(Integer(Tiles::<Q2K>::of_bytes(out, columns, read)?)),
            Format::Q3K => Box::new(Integer(Tiles::<Q3K>::of_bytes(out, columns, read)?)),
            Format::Q5K => Box::new(Integer(Tiles::<Q5K>::of_bytes(out, columns, read)?)),
            Format::Q6K => Box::new(Integer(Tiles::<Q6K>::of_bytes(out, columns, read)?)),
        };
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

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The rows of the matrix at `ids [n]`: `[n, in]`.
    pub fn rows(&self, ids: &[u32]) -> Result<Rows> {
        let [out, columns] = self.0.shape();
        let mut numbers = Vec::with_capacity(ids.len() * columns);
        for &id in ids {
            if id as usize >= out {
                bail!("packed matrix: expected a row below {out}, got {id}");
            }
            self.0.row(id as usize, &mut numbers);
        }
        Ok(Rows::Host { numbers, width: columns })
    }

    /// The rows at `ids` as a matrix of their own, held in the same way where numbers can be
    /// rounded to it, else in `Q8_0`.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        let [out, columns] = self.0.shape();
        if let Some(id) = ids.iter().find(|id| **id as usize >= out) {
            bail!("packed matrix: expected rows below {out}, got {id}");
        }
        let format = match self.1 {
            Format::Q5_0 | Format::Q2K | Format::Q3K | Format::Q5K | Format::Q6K => Format::Q8_0,
            format => format,
        };
        let rows = Selected { all: self.0.as_ref(), columns, ids };
        match Self::load::<Infallible>(format, ids.len(), columns, rows) {
            Ok(selected) => Ok(selected),
            Err(never) => match never {},
        }
    }

    /// y `[rows, out]` for x `[rows, in]`.
    pub fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.0.shape()[1]);
        self.0.product(x, rows)
    }

    /// Likewise, for rows of this width.
    pub fn forward(&self, x: &[f32], width: usize) -> Result<Rows> {
        let [out, columns] = self.0.shape();
        if width != columns {
            bail!("packed product: expected {columns} columns, got {width}");
        }
        Ok(Rows::Host { numbers: self.product(x, x.len() / width.max(1)), width: out })
    }
}

/// Rows of a matrix in memory.
struct Held<'a>(&'a dyn Matrix);

impl Held<'_> {
    fn copy<T>(&self, first: usize, values: &mut [T], convert: impl Fn(f32) -> T) {
        let mut row = Vec::with_capacity(self.0.shape()[1]);
        for (number, values) in values.chunks_exact_mut(self.0.shape()[1]).enumerate() {
            row.clear();
            self.0.row(first + number, &mut row);
            values.iter_mut().zip(&row).for_each(|(value, held)| *value = convert(*held));
        }
    }
}

impl Read<Infallible> for Held<'_> {
    fn f32(&self, first: usize, values: &mut [f32]) -> std::result::Result<(), Infallible> {
        self.copy(first, values, |value| value);
        Ok(())
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> std::result::Result<(), Infallible> {
        self.copy(first, values, f16::from_f32);
        Ok(())
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> std::result::Result<(), Infallible> {
        self.copy(first, values, bf16::from_f32);
        Ok(())
    }
}

/// Blocks as a file has them; in f32 what it has otherwise.
fn as_filed<B: Block, E: Send>(
    out: usize,
    columns: usize,
    rows: &impl Read<E>,
) -> std::result::Result<Box<dyn Matrix>, E> {
    Ok(match rows.blocks(B::KIND) {
        Some(blocks) => Box::new(Integer(Tiles::<B>::from_file(out, columns, blocks)?)),
        None => Box::new(Exact(Tiles::<F32>::load(out, columns, rows, None)?)),
    })
}

/// Some rows of a matrix.
struct Selected<'a> {
    all: &'a dyn Matrix,
    columns: usize,
    ids: &'a [u32],
}

impl Selected<'_> {
    fn each<T>(&self, first: usize, values: &mut [T], convert: impl Fn(f32) -> T) {
        let mut row = Vec::with_capacity(self.columns);
        for (id, values) in
            self.ids[first..].iter().zip(values.chunks_exact_mut(self.columns.max(1)))
        {
            row.clear();
            self.all.row(*id as usize, &mut row);
            values.iter_mut().zip(&row).for_each(|(value, x)| *value = convert(*x));
        }
    }
}

impl Read<Infallible> for Selected<'_> {
    fn f32(&self, first: usize, values: &mut [f32]) -> std::result::Result<(), Infallible> {
        self.each(first, values, |x| x);
        Ok(())
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> std::result::Result<(), Infallible> {
        self.each(first, values, f16::from_f32);
        Ok(())
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> std::result::Result<(), Infallible> {
        self.each(first, values, bf16::from_f32);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
