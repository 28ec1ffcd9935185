//! Matrices whose numbers are indices into a table of 16 or 256 values, times a scale that
//! neighbours share: NVFP4, and bitsandbytes' NF4, FP4 and INT8.
//!
//! Sources: NVFP4 as compressed-tensors and NVIDIA's Model Optimizer write it; Dettmers et al. 2023
//! (QLoRA) and 2022 (LLM.int8()); bitsandbytes' `QuantState`.

mod bitsandbytes;
mod parts;

use safetensors::tensor::Dtype;

use super::element::{Element, not_finite};
use super::narrow::e4m3;
use super::parts::Shaped;
use super::stored::Stored;
use crate::error::{Error, Result};
pub(crate) use parts::Parts;
pub(super) use parts::take;

/// What four bits stand for in FP4: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// How indices lie in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Two in a byte, the first in its lower half,
    LowFirst,
    /// or in its upper half.
    HighFirst,
    Bytes,
}

/// Rows of indices, one after the other, with what each stands for.
pub(crate) struct Codebook {
    numbers: Stored,
    order: Order,
    table: Vec<f32>,
    /// One for each `block` numbers, whatever row they are in.
    scales: Vec<f32>,
    block: usize,
}

impl Codebook {
    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        let (start, end) = (first * columns, first * columns + values.len());
        let per = if self.order == Order::Bytes { 1 } else { 2 };
        let from = start / per;
        let bytes: Vec<[u8; 1]> = self.numbers.bytes(from, end.div_ceil(per) - from)?;
        let index = |at: usize| {
            let [byte] = bytes[at / per - from];
            usize::from(match (self.order, at % 2) {
                (Order::Bytes, _) => byte,
                (Order::LowFirst, 0) | (Order::HighFirst, 1) => byte & 15,
                (Order::LowFirst | Order::HighFirst, _) => byte >> 4,
            })
        };
        let (mut at, mut left) = (start, &mut *values);
        while !left.is_empty() {
            let scale = self.scales[at / self.block];
            let (now, later) = left.split_at_mut(left.len().min(self.block - at % self.block));
            for value in &mut *now {
                *value = T::from_f32((self.table[index(at)] * scale).to_le_bytes());
                at += 1;
            }
            left = later;
        }
        match not_finite(values) {
            None => Ok(()),
            Some((at, got)) => {
                let got = format!("{got} in row {}, column {}", first + at / columns, at % columns);
                Err(self.numbers.wrong("finite numbers, times their scales".to_owned(), got))
            }
        }
    }
}

/// All numbers of a small tensor of one of these types.
fn numbers(of: &Shaped, types: &[Dtype]) -> Result<Vec<f32>> {
    let dtype = of.stored.dtype();
    if !types.contains(&dtype) {
        let names: Vec<String> = types.iter().map(|dtype| format!("{dtype:?}")).collect();
        let expected = format!("type {}", names.join(" or "));
        return Err(of.stored.wrong(expected, format!("type {dtype:?}")));
    }
    let count = of.shape.iter().product();
    let narrow = |value: fn(u8) -> f32| -> Result<Vec<f32>> {
        let bytes: Vec<[u8; 1]> = of.stored.bytes(0, count)?;
        Ok(bytes.into_iter().map(|[byte]| value(byte)).collect())
    };
    match dtype {
        Dtype::F8_E4M3 => narrow(e4m3),
        Dtype::U8 => narrow(f32::from),
        _ => {
            let mut values = vec![0.0; count];
            of.stored.read(0, &mut values)?;
            Ok(values)
        }
    }
}

/// What cannot be, of one of a matrix' tensors.
fn wrong(of: &Shaped, expected: &str) -> Error {
    of.stored.wrong(expected.to_owned(), format!("shape {:?}", of.shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the format's definition.
    #[test]
    fn four_bits_are_what_the_format_says() {
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
