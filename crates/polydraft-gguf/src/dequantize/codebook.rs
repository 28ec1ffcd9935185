//! Blocks of 4-bit indices into a codebook.
//!
//! MXFP4 (OCP Microscaling Formats 1.0, 2023) has numbers with two bits of exponent and one of
//! mantissa, times a power of two. Twice such a number is an integer from -12 to 12. So the block
//! is also a block of Q5_0 with half of its scale, and is stored and multiplied as such without
//! loss. IQ4_NL has bytes of a codebook times a scale. IQ4_XS has eight sub-blocks of these, with
//! scales that are 6-bit multiples of the block's scale.

use half::f16;

use super::{DequantizeError, scale};
use crate::tensor_type::TensorType;

/// Number of numbers in a block of MXFP4.
pub const MXFP4_BLOCK_SIZE: usize = 32;

/// Codebook of MXFP4, each number multiplied by 2.
const MXFP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Codebook of IQ4_NL and IQ4_XS.
pub const IQ4_CODEBOOK: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Unpacks indices: number i is in the low nibble of byte i, number i + 16 in the high nibble.
fn indices(bytes: &[u8; 16]) -> [usize; 32] {
    std::array::from_fn(|i| usize::from(bytes[i % 16] >> (4 * (i / 16)) & 15))
}

/// Returns half of 2^(exponent - 127).
fn half_power(exponent: u8) -> f32 {
    match exponent {
        // Subnormal numbers.
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Unpacks the indices in the last 16 bytes of a block.
fn block_indices<const B: usize>(block: &[u8; B]) -> [usize; 32] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&block[B - 16..]);
    indices(&bytes)
}

/// Converts MXFP4: an exponent and 16 bytes of indices.
#[inline(always)]
pub(super) fn mxfp4(block: &[u8; 17], values: &mut [f32; 32]) {
    let d = half_power(block[0]);
    for (value, index) in values.iter_mut().zip(block_indices(block)) {
        *value = f32::from(MXFP4_DOUBLED[index]) * d;
    }
}

/// Converts IQ4_NL: a scale and 16 bytes of indices.
#[inline(always)]
pub(super) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (value, index) in values.iter_mut().zip(block_indices(block)) {
        *value = f32::from(IQ4_CODEBOOK[index]) * d;
    }
}

/// Unpacks the 6-bit multiples of the scale of an IQ4_XS block, by sub-block, stored with an offset
/// of 32. The block has the upper two bits of all multiples first, then the lower four.
pub fn iq4_xs_sub_scales(block: &[u8]) -> [u8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|part| {
        let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
        low | ((high >> (2 * part) & 3) as u8) << 4
    })
}

/// Converts IQ4_XS: a scale, multiples of the scale, and 16 bytes of indices per sub-block.
#[inline(always)]
pub(super) fn iq4_xs(block: &[u8; 136], values: &mut [f32; 256]) {
    let (d, sub_scales) = (scale(block, 0), iq4_xs_sub_scales(block));
    let numbers = block[8..].as_chunks::<16>().0;
    for ((values, bytes), sub_scale) in
        values.as_chunks_mut::<32>().0.iter_mut().zip(numbers).zip(sub_scales)
    {
        let d = d * (f32::from(sub_scale) - 32.0);
        for (value, index) in values.iter_mut().zip(indices(bytes)) {
            *value = f32::from(IQ4_CODEBOOK[index]) * d;
        }
    }
}

/// Converts blocks to the type of [`TensorType::memory_type`], without loss. `to` must have space
/// for the same number of blocks.
///
/// # Errors
/// A type that needs no conversion; wrong lengths; a scale that the other type cannot represent, in
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

/// Converts blocks of MXFP4 to Q5_0.
///
/// # Errors
/// The errors of [`to_memory_type`].
pub fn mxfp4_to_q5_0(from: &[u8], to: &mut [u8]) -> Result<(), DequantizeError> {
    if from.len() / 17 * 22 != to.len() {
        let (expected, got) = (format!("a buffer of {} blocks", from.len() / 17), to.len() / 22);
        return Err(DequantizeError { expected, got: got.to_string() });
    }
    for (block, to) in from.as_chunks::<17>().0.iter().zip(to.as_chunks_mut::<22>().0) {
        let numbers = block_indices(block).map(|index| MXFP4_DOUBLED[index]);
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

    fn converted(kind: TensorType, blocks: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; blocks.len() / kind.block_bytes() * kind.block()];
        dequantize(kind, blocks, &mut values).unwrap();
        values
    }

    /// Tries all numbers with all scales that Q5_0 can represent.
    #[test]
    fn mxfp4_and_q5_0_blocks_have_the_same_numbers() {
        let bytes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        for exponent in 104..=143 {
            let block = [&[exponent][..], &bytes].concat();
            let mut q5_0 = vec![0; 22];
            to_memory_type(TensorType::MXFP4, &block, &mut q5_0).unwrap();
            assert_eq!(converted(TensorType::Q5_0, &q5_0), converted(TensorType::MXFP4, &block));
            let power = 2f64.powi(i32::from(exponent) - 127);
            let first: Vec<f64> =
                converted(TensorType::MXFP4, &block)[..8].iter().map(|x| f64::from(*x)).collect();
            let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].map(|x: f64| x * power);
            assert_eq!(first, expected);
        }
    }

    #[test]
    fn rejects_unrepresentable_scales_of_nonzero_blocks() {
        for exponent in [0, 1, 50, 103, 144, 254] {
            let mut q5_0 = vec![1; 22];
            let block = [&[exponent][..], &[0x31; 16]].concat();
            let error = to_memory_type(TensorType::MXFP4, &block, &mut q5_0).unwrap_err();
            assert!(error.to_string().contains("weight types f32"), "{error}");
            assert!(converted(TensorType::MXFP4, &block)[0] > 0.0);
            let zeros = [&[exponent][..], &[0x80; 16]].concat();
            to_memory_type(TensorType::MXFP4, &zeros, &mut q5_0).unwrap();
            assert_eq!(converted(TensorType::Q5_0, &q5_0), [0.0; 32]);
        }
        assert!(to_memory_type(TensorType::MXFP4, &[0; 17], &mut [0; 21]).is_err());
        assert!(to_memory_type(TensorType::Q4_0, &[0; 18], &mut [0; 18]).is_err());
    }
}
