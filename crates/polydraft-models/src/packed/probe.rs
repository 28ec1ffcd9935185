//! What the benchmark of products sees: a matrix of made-up weights.

use super::{Packed, Read};
use crate::Precision;

/// A matrix of made-up weights, for `cargo bench -p polydraft-models --bench products`. No part of
/// the interface.
#[doc(hidden)]
#[derive(Debug)]
pub struct ProductProbe(Packed);

/// Weights as a function of their place.
struct Made {
    columns: usize,
    seed: u32,
}

impl Made {
    /// Between −1 and 1, evenly.
    fn fill<T>(&self, first: usize, values: &mut [T], convert: impl Fn(f32) -> T) {
        for (at, value) in values.iter_mut().enumerate() {
            let mixed = ((first * self.columns + at) as u32 ^ self.seed).wrapping_mul(0x9e37_79b1);
            *value = convert((mixed ^ mixed >> 15) as f32 / (1u64 << 31) as f32 - 1.0);
        }
    }
}

impl Read<()> for Made {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), ()> {
        self.fill(first, values, |v| v);
        Ok(())
    }

    fn f16(&self, first: usize, values: &mut [half::f16]) -> Result<(), ()> {
        self.fill(first, values, half::f16::from_f32);
        Ok(())
    }

    fn bf16(&self, first: usize, values: &mut [half::bf16]) -> Result<(), ()> {
        self.fill(first, values, half::bf16::from_f32);
        Ok(())
    }
}

impl ProductProbe {
    /// `[out, columns]`, columns a multiple of 256.
    pub fn new(precision: Precision, out: usize, columns: usize, seed: u32) -> Self {
        let loaded = Packed::load(precision.format(), out, columns, Made { columns, seed });
        match loaded {
            Ok(packed) => Self(packed),
            Err(()) => unreachable!("made-up weights can be read"),
        }
    }

    /// Bytes that one would hold.
    pub fn bytes_of(precision: Precision, out: usize, columns: usize) -> u64 {
        precision.format().bytes(out, columns)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Row `row` in f32.
    pub fn row(&self, row: usize) -> Vec<f32> {
        let mut values = Vec::new();
        self.0.0.row(row, &mut values);
        values
    }

    /// y `[rows, out]` for x `[rows, columns]`.
    pub fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        self.0.product(x, rows)
    }
}
