//! Matrices behind a trait object, independent of their format.

use std::fmt::Debug;

use half::{bf16, f16};

use super::block::Block;
use super::exact::{self, ExactWeights};
use super::integer;
use super::read::ReadRows;
use super::tiles::{Chunk, Tiles};

/// A matrix in any format.
pub(super) trait Matrix: Debug + Send + Sync {
    /// Returns the number of rows and of columns.
    fn shape(&self) -> [usize; 2];
    /// Returns the size in bytes.
    fn bytes(&self) -> usize;
    /// Returns the memory of the matrix.
    fn as_bytes(&self) -> &[u8];
    /// Appends a row in f32 to `values`.
    fn row(&self, row: usize, values: &mut Vec<f32>);
    /// Returns y `[rows, out]` for x `[rows, in]`, in `buffer` if its capacity suffices.
    fn product(&self, x: &[f32], rows: usize, buffer: Vec<f32>) -> Vec<f32>;
}

/// A matrix of tiles.
pub(super) trait Tiled: Matrix + Sized + 'static {
    type Chunk: Chunk;

    fn new(tiles: Tiles<Self::Chunk>) -> Self;
}

/// A matrix whose products are computed in f32.
#[derive(Debug)]
pub(super) struct Exact<P>(Tiles<P>);

/// A matrix whose products are computed in integers.
#[derive(Debug)]
pub(super) struct Integer<P>(Tiles<P>);

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

            fn product(&self, x: &[f32], rows: usize, buffer: Vec<f32>) -> Vec<f32> {
                $product(&self.0, x, rows, buffer)
            }
        }

        impl<P: $bound> Tiled for $name<P> {
            type Chunk = P;

            fn new(tiles: Tiles<P>) -> Self {
                Self(tiles)
            }
        }
    };
}
matrix!(Exact, ExactWeights, exact::product);
matrix!(Integer, Block, integer::product);

/// Rows of a matrix, selected and reordered.
pub(super) struct Selected<'a, N> {
    pub matrix: &'a dyn Matrix,
    /// Maps a row of the selection to a row of the matrix.
    pub index: N,
}

impl<N: Fn(usize) -> usize> Selected<'_, N> {
    fn copy<T>(&self, first: usize, values: &mut [T], convert: impl Fn(f32) -> T) {
        let [_, columns] = self.matrix.shape();
        let mut row = Vec::with_capacity(columns);
        for (number, values) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            row.clear();
            self.matrix.row((self.index)(first + number), &mut row);
            values.iter_mut().zip(&row).for_each(|(value, stored)| *value = convert(*stored));
        }
    }
}

impl<N: Fn(usize) -> usize + Sync, E> ReadRows<E> for Selected<'_, N> {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), E> {
        self.copy(first, values, |value| value);
        Ok(())
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> Result<(), E> {
        self.copy(first, values, f16::from_f32);
        Ok(())
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<(), E> {
        self.copy(first, values, bf16::from_f32);
        Ok(())
    }
}
