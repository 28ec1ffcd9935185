//! Codebook matrices: indices into a table of 16 or 256 values, times a scale per block of
//! neighbours: NVFP4, and bitsandbytes' NF4, FP4 and INT8.
//!
//! Sources: NVFP4 as compressed-tensors and NVIDIA's Model Optimizer write it; Dettmers et al. 2023
//! (QLoRA) and 2022 (LLM.int8()); bitsandbytes' `QuantState`.

mod bitsandbytes;
mod tensors;

use safetensors::tensor::Dtype;

use super::element::{Element, not_finite};
use super::float8::e4m3;
use super::packed_tensors::ShapedTensor;
use super::stored::StoredTensor;
use crate::error::{Error, Result};
pub(crate) use tensors::CodebookTensors;
pub(super) use tensors::take;

/// Values of the 16 codes of FP4 (E2M1): sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Order of indices in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Two per byte, the first in the lower half.
    LowFirst,
    /// Two per byte, the first in the upper half.
    HighFirst,
    /// One per byte.
    Bytes,
}

/// Rows of indices with their table and scales.
pub(crate) struct Codebook {
    numbers: StoredTensor,
    order: Order,
    table: Vec<f32>,
    /// One scale per `block` numbers, counted across rows.
    scales: Vec<f32>,
    block: usize,
}

impl Codebook {
    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        let (start, end) = (first * columns, first * columns + values.len());
        let per_byte = if self.order == Order::Bytes { 1 } else { 2 };
        let from = start / per_byte;
        let bytes: Vec<[u8; 1]> = self.numbers.bytes(from, end.div_ceil(per_byte) - from)?;
        let index = |at: usize| {
            let [byte] = bytes[at / per_byte - from];
            usize::from(match (self.order, at % 2) {
                (Order::Bytes, _) => byte,
                (Order::LowFirst, 0) | (Order::HighFirst, 1) => byte & 15,
                (Order::LowFirst | Order::HighFirst, _) => byte >> 4,
            })
        };
        let (mut at, mut left) = (start, &mut *values);
        while !left.is_empty() {
            let scale = self.scales[at / self.block];
            let (block, later) = left.split_at_mut(left.len().min(self.block - at % self.block));
            for value in &mut *block {
                *value = T::from_f32((self.table[index(at)] * scale).to_le_bytes());
                at += 1;
            }
            left = later;
        }
        match not_finite(values) {
            None => Ok(()),
            Some((at, got)) => {
                let got = format!("{got} in row {}, column {}", first + at / columns, at % columns);
                Err(self.numbers.tensor_error("finite numbers, times their scales".to_owned(), got))
            }
        }
    }
}

/// Reads all numbers of a small tensor of one of these types.
fn numbers(tensor: &ShapedTensor, types: &[Dtype]) -> Result<Vec<f32>> {
    let dtype = tensor.stored.dtype();
    if !types.contains(&dtype) {
        let names: Vec<String> = types.iter().map(|dtype| format!("{dtype:?}")).collect();
        let expected = format!("type {}", names.join(" or "));
        return Err(tensor.stored.tensor_error(expected, format!("type {dtype:?}")));
    }
    let count = tensor.shape.iter().product();
    let read_bytes = |value: fn(u8) -> f32| -> Result<Vec<f32>> {
        let bytes: Vec<[u8; 1]> = tensor.stored.bytes(0, count)?;
        Ok(bytes.into_iter().map(|[byte]| value(byte)).collect())
    };
    match dtype {
        Dtype::F8_E4M3 => read_bytes(e4m3),
        Dtype::U8 => read_bytes(f32::from),
        _ => {
            let mut values = vec![0.0; count];
            tensor.stored.read(0, &mut values)?;
            Ok(values)
        }
    }
}

/// Error about the shape of one of a matrix's tensors.
fn shape_error(tensor: &ShapedTensor, expected: &str) -> Error {
    tensor.stored.tensor_error(expected.to_owned(), format!("shape {:?}", tensor.shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the table with the format's definition.
    #[test]
    fn fp4_codes_have_the_values_of_the_format() {
        for (bits, value) in E2M1.into_iter().enumerate() {
            let (exponent, mantissa) = (bits >> 1 & 3, (bits & 1) as f32);
            let size = match exponent {
                0 => 0.5 * mantissa,
                _ => (1.0 + 0.5 * mantissa) * 2f32.powi(exponent as i32 - 1),
            };
            assert_eq!(value, if bits < 8 { size } else { -size }, "{bits}");
        }
    }
}
