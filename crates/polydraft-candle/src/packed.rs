//! Products with a large matrix, held in 32, 16, 8 or 4 bits: what decoding does all day.
//!
//! Reading the weights is the cost of decoding. A product that packs or streams them more than once makes a tree of eight
//! nodes several times as dear as one token, and fewer bits are less time. So they are laid out once, on loading, as the
//! products want them ([`tiles`]): in f32, bf16 or f16 ([`exact`]), or in blocks of integers ([`blocks`], rounded in
//! [`quantise`]), for products with inputs in f32 ([`exact`]) or rounded to 8 bits too ([`inputs`], [`integer`]).
//! Threads share the tiles ([`pool`]). Every product gives a row of inputs the same result, to the bit, in whatever
//! company it comes: trees of different shapes give a node the same logits.

mod blocks;
mod exact;
mod file;
mod inputs;
mod integer;
mod output;
pub(crate) mod pool;
mod probe;
mod quantise;
mod tiles;

use std::fmt::Debug;

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};

use crate::Error;
use crate::weights::Rows;
use blocks::{Block, Q4_0, Q4_1, Q4K, Q8_0};
use exact::{Bf16, F16, F32, Words};
#[doc(hidden)]
pub use probe::ProductProbe;
pub(crate) use tiles::Read;
use tiles::{Piece, Tiles};

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
}

impl Format {
    /// Columns must be a multiple of this.
    pub fn unit(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            Self::Q8_0F32 | Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => Q8_0::COLUMNS,
            Self::Q4K => Q4K::COLUMNS,
        }
    }
}

/// A matrix `[out, in]`.
#[derive(Debug)]
pub(crate) struct Packed(Box<dyn Matrix>);

/// What a matrix can do, however it is held.
trait Matrix: Debug + Send + Sync {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];
    fn bytes(&self) -> usize;
    /// Appends a row in f32.
    fn row(&self, row: usize, values: &mut Vec<f32>);
    /// Some rows, held in the same way.
    fn select(&self, rows: &[u32]) -> Box<dyn Matrix>;
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

            fn row(&self, row: usize, values: &mut Vec<f32>) {
                self.0.row(row, values);
            }

            fn select(&self, rows: &[u32]) -> Box<dyn Matrix> {
                Box::new(Self(self.0.select(rows)))
            }

            fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
                $product(&self.0, x, rows)
            }
        }
    };
}
matrix!(Exact, Words, exact::product);
matrix!(Integer, Block, integer::product);

impl Read<Error> for &Rows {
    fn f32(&self, first: usize, values: &mut [f32]) -> crate::Result<()> {
        self.read(first, values)
    }

    fn f16(&self, first: usize, values: &mut [half::f16]) -> crate::Result<()> {
        self.read(first, values)
    }

    fn bf16(&self, first: usize, values: &mut [half::bf16]) -> crate::Result<()> {
        self.read(first, values)
    }
}

impl Packed {
    /// Reads rows, a tile at a time on all threads, straight into their place; formats of fewer bits round them.
    ///
    /// The columns must be a multiple of the format's [`Format::unit`].
    pub fn load<E: Send>(
        format: Format,
        out: usize,
        columns: usize,
        rows: impl Read<E>,
    ) -> std::result::Result<Self, E> {
        assert!(columns.is_multiple_of(format.unit()), "{format:?} of {columns} columns");
        let rows = &rows;
        Ok(Self(match format {
            Format::F32 => Box::new(Exact(Tiles::<F32>::load(out, columns, rows)?)),
            Format::Bf16 => Box::new(Exact(Tiles::<Bf16>::load(out, columns, rows)?)),
            Format::F16 => Box::new(Exact(Tiles::<F16>::load(out, columns, rows)?)),
            Format::Q8_0F32 => Box::new(Exact(Tiles::<Q8_0>::load(out, columns, rows)?)),
            Format::Q8_0 => Box::new(Integer(Tiles::<Q8_0>::load(out, columns, rows)?)),
            Format::Q4_0 => Box::new(Integer(Tiles::<Q4_0>::load(out, columns, rows)?)),
            Format::Q4_1 => Box::new(Integer(Tiles::<Q4_1>::load(out, columns, rows)?)),
            Format::Q4K => Box::new(Integer(Tiles::<Q4K>::load(out, columns, rows)?)),
        }))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The rows of the matrix at `ids [n]`: `[n, in]`.
    pub fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let [out, columns] = self.0.shape();
        let mut values = Vec::with_capacity(ids.len() * columns);
        for &id in ids {
            if id as usize >= out {
                candle_core::bail!("packed matrix: expected a row below {out}, got {id}");
            }
            self.0.row(id as usize, &mut values);
        }
        Tensor::from_vec(values, (ids.len(), columns), &Device::Cpu)
    }

    /// The rows at `ids` as a matrix of their own, held in the same way.
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        let [out, _] = self.0.shape();
        match ids.iter().find(|id| **id as usize >= out) {
            Some(id) => candle_core::bail!("packed matrix: expected rows below {out}, got {id}"),
            None => Ok(Self(self.0.select(ids))),
        }
    }

    /// y `[rows, out]` for x `[rows, in]`.
    pub fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        assert_eq!(x.len(), rows * self.0.shape()[1]);
        self.0.product(x, rows)
    }
}

impl CustomOp1 for Packed {
    fn name(&self) -> &'static str {
        "packed-product"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("packed product: expected a contiguous tensor, got {layout:?}")
        };
        let [out, columns] = self.0.shape();
        if width != columns {
            candle_core::bail!("packed product: expected {columns} columns, got {width}");
        }
        let y = self.product(&x.as_slice::<f32>()?[from..to], rows);
        Ok((CpuStorage::F32(y), Shape::from((rows, out))))
    }
}

#[cfg(test)]
mod tests;
