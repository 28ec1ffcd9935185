//! A matrix in memory, whatever it is made of.

use std::fmt::Debug;

use half::{bf16, f16};

use super::block::Block;
use super::exact::{self, Words};
use super::integer;
use super::read::ReadRows;
use super::tiles::{Piece, Tiles};

/// What a matrix can do, in whatever format it is stored.
pub(super) trait Matrix: Debug + Send + Sync {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];
    fn bytes(&self) -> usize;
    /// As it lies in memory.
    fn as_bytes(&self) -> &[u8];
    /// Appends a row in f32.
    fn row(&self, row: usize, values: &mut Vec<f32>);
    /// y `[rows, out]` for x `[rows, in]`, in `room` where that is large enough.
    fn product(&self, x: &[f32], rows: usize, room: Vec<f32>) -> Vec<f32>;
}

/// One that is made of tiles.
pub(super) trait Tiled: Matrix + Sized + 'static {
    type Piece: Piece;

    fn of(tiles: Tiles<Self::Piece>) -> Self;
}

/// With products in f32.
#[derive(Debug)]
pub(super) struct Exact<P>(Tiles<P>);

/// With products in integers.
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

            fn product(&self, x: &[f32], rows: usize, room: Vec<f32>) -> Vec<f32> {
                $product(&self.0, x, rows, room)
            }
        }

        impl<P: $bound> Tiled for $name<P> {
            type Piece = P;

            fn of(tiles: Tiles<P>) -> Self {
                Self(tiles)
            }
        }
    };
}
matrix!(Exact, Words, exact::product);
matrix!(Integer, Block, integer::product);

/// Some rows of a matrix.
pub(super) struct Selected<'a, N> {
    pub of: &'a dyn Matrix,
    /// The number of each row.
    pub numbers: N,
}

impl<N: Fn(usize) -> usize> Selected<'_, N> {
    fn copy<T>(&self, first: usize, values: &mut [T], convert: impl Fn(f32) -> T) {
        let [_, columns] = self.of.shape();
        let mut row = Vec::with_capacity(columns);
        for (number, values) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            row.clear();
            self.of.row((self.numbers)(first + number), &mut row);
            values.iter_mut().zip(&row).for_each(|(value, held)| *value = convert(*held));
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
