//! Blocks whose four bits are places in a table.
//!
//! MXFP4 (OCP Microscaling Formats 1.0, 2023): numbers with two bits of exponent and one of
//! mantissa, times a power of two. Twice such a number is a whole number from -12 to 12: the block
//! is one of Q5_0 too, with half its scale, so it is stored and multiplied as that, and no number
//! changes. IQ4_NL: bytes of a table times a scale; IQ4_XS: eight times that with one scale, and
//! steps of 6 bits.

use half::f16;

use super::{DequantizeError, scale};
use crate::tensor_type::TensorType;

/// Numbers of a block of MXFP4.
pub const MXFP4_BLOCK_SIZE: usize = 32;

/// Twice the numbers of MXFP4.
const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Those of IQ4_NL and IQ4_XS.
pub const IQ4_CODEBOOK: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Number i of the first half of a block is in the lower four bits of byte i, of the second in the
/// upper.
fn places(bytes: &[u8; 16]) -> [usize; 32] {
    std::array::from_fn(|i| usize::from(bytes[i % 16] >> (4 * (i / 16)) & 15))
}

/// Half of 2^(exponent - 127).
fn half_power(exponent: u8) -> f32 {
    match exponent {
        // Below the normal numbers.
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

fn parts<const B: usize>(block: &[u8; B]) -> [usize; 32] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&block[B - 16..]);
    places(&bytes)
}

/// An exponent, 16 bytes.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], values: &mut [f32; 32]) {
    let d = half_power(block[0]);
    for (value, place) in values.iter_mut().zip(parts(block)) {
        *value = f32::from(HALVES[place]) * d;
    }
}

/// A scale, 16 bytes.
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (value, place) in values.iter_mut().zip(parts(block)) {
        *value = f32::from(IQ4_CODEBOOK[place]) * d;
    }
}

/// What the scale of each of the eight parts is multiplied with, and 32 more: of 6 bits, the lower
/// four after the upper two.
pub fn iq4_xs_sub_scales(block: &[u8]) -> [u8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|part| {
        let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
        low | ((high >> (2 * part) & 3) as u8) << 4
    })
}

/// A scale, steps, eight times 16 bytes.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], values: &mut [f32; 256]) {
    let (d, steps) = (scale(block, 0), iq4_xs_sub_scales(block));
    let numbers = block[8..].as_chunks::<16>().0;
    for ((values, bytes), step) in values.as_chunks_mut::<32>().0.iter_mut().zip(numbers).zip(steps)
    {
        let d = d * (f32::from(step) - 32.0);
        for (value, place) in values.iter_mut().zip(places(bytes)) {
            *value = f32::from(IQ4_CODEBOOK[place]) * d;
        }
    }
}

/// Blocks of a type as those of [`TensorType::memory_type`]. `to` has room for as many.
///
/// # Errors
/// A type that is stored as it is; other lengths; a scale that the other type has no number for, in
/// a block that is not all zeros.
pub fn to_memory_type(kind: TensorType, from: &[u8], to: &mut [u8]) -> Result<(), DequantizeError> {
    match kind {
        TensorType::MXFP4 => mxfp4_to_q5_0(from, to),
        other => Err(DequantizeError {
            expected: "whole blocks of type MXFP4".to_owned(),
            got: format!("{} bytes of type {other}", from.len()),
        }),
    }
}

/// Blocks of MXFP4 as those of Q5_0.
///
/// # Errors
/// As for [`to_memory_type`].
pub fn mxfp4_to_q5_0(from: &[u8], to: &mut [u8]) -> Result<(), DequantizeError> {
    if from.len() / 17 * 22 != to.len() {
        let (expected, got) = (format!("room for {} blocks", from.len() / 17), to.len() / 22);
        return Err(DequantizeError { expected, got: got.to_string() });
    }
    for (block, to) in from.as_chunks::<17>().0.iter().zip(to.as_chunks_mut::<22>().0) {
        let numbers = parts(block).map(|place| HALVES[place]);
        let exact = half_power(block[0]);
        let scale = match f16::from_f32(exact) {
            _ if numbers == [0; 32] => f16::ZERO,
            scale if scale.to_f32() == exact => scale,
            _ => {
                return Err(DequantizeError {
                    expected: "scales of MXFP4 from 2^-23 to 2^16 (the weight types f32 and bf16 \
                               have others too)"
                        .to_owned(),
                    got: format!("2^{}", i32::from(block[0]) - 127),
                });
            }
        };
        to[..2].copy_from_slice(&scale.to_le_bytes());
        let mut fifth = 0u32;
        for i in 0..16 {
            let [low, high] = [numbers[i], numbers[i + 16]].map(|number| (number + 16) as u8);
            fifth |= u32::from(low >> 4) << i | u32::from(high >> 4) << (i + 16);
            to[6 + i] = low & 15 | (high & 15) << 4;
        }
        to[2..6].copy_from_slice(&fifth.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::dequantize;
    use super::*;

    fn wide(kind: TensorType, blocks: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; blocks.len() / kind.block_bytes() * kind.block()];
        dequantize(kind, blocks, &mut values).unwrap();
        values
    }

    /// All numbers with all scales that the other type has.
    #[test]
    fn blocks_hold_the_same_numbers() {
        let bytes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        for exponent in 104..=143 {
            let block = [&[exponent][..], &bytes].concat();
            let mut held = vec![0; 22];
            to_memory_type(TensorType::MXFP4, &block, &mut held).unwrap();
            assert_eq!(wide(TensorType::Q5_0, &held), wide(TensorType::MXFP4, &block));
            let power = 2f64.powi(i32::from(exponent) - 127);
            let first: Vec<f64> =
                wide(TensorType::MXFP4, &block)[..8].iter().map(|x| f64::from(*x)).collect();
            let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].map(|x: f64| x * power);
            assert_eq!(first, expected);
        }
    }

    #[test]
    fn scales_beyond_are_refused_unless_all_is_zero() {
        for exponent in [0, 1, 50, 103, 144, 254] {
            let mut held = vec![1; 22];
            let block = [&[exponent][..], &[0x31; 16]].concat();
            let error = to_memory_type(TensorType::MXFP4, &block, &mut held).unwrap_err();
            assert!(error.to_string().contains("weight types f32"), "{error}");
            assert!(wide(TensorType::MXFP4, &block)[0] > 0.0);
            let zeros = [&[exponent][..], &[0x80; 16]].concat();
            to_memory_type(TensorType::MXFP4, &zeros, &mut held).unwrap();
            assert_eq!(wide(TensorType::Q5_0, &held), [0.0; 32]);
        }
        assert!(to_memory_type(TensorType::MXFP4, &[0; 17], &mut [0; 21]).is_err());
        assert!(to_memory_type(TensorType::Q4_0, &[0; 18], &mut [0; 18]).is_err());
    }
}
