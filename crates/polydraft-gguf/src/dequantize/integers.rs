//! Integers of blocks, without conversion to f32.

use half::f16;

use super::{k, plain};
use crate::tensor_type::TensorType;

/// Unpacked block of a type whose numbers have 2, 3, 5 or 6 bits, for callers that rearrange
/// blocks.
///
/// Number i is `scale · (numbers[i] − offset)`, minus a minimum for types that have one. In types
/// with two levels of scales, scale and minimum are multiplied by `sub_scales`.
#[derive(Debug, Clone, PartialEq)]
pub struct Integers {
    /// Unsigned numbers; blocks of 32 use the first 32.
    pub numbers: [u8; 256],
    /// Multiples of the scale for every 16 numbers. `Q2_K`: in the low nibble of each byte, and the
    /// multiple of the minimum in the high nibble. `Q3_K`, `Q6_K`: signed bytes. `Q5_K`: 8
    /// multiples for every 32 numbers, then 8 of the minimum. Unused in other types.
    pub sub_scales: [u8; 16],
    /// Scale, as the bits of an f16.
    pub scale: u16,
    /// Minimum, which is subtracted (`Q2_K`, `Q5_K`) or added (`Q5_1`); 0 for types without one.
    pub minimum: u16,
}

impl Integers {
    /// Unpacks a block; returns `None` for other types, and for bytes of another length.
    pub fn new(kind: TensorType, block: &[u8]) -> Option<Self> {
        let mut numbers = [0; 256];
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_bits();
        let (sub_scales, scale, minimum) = match kind {
            TensorType::Q5_0 => {
                numbers[..32].copy_from_slice(&plain::q5_0_numbers(block.try_into().ok()?));
                ([0; 16], half(0), 0)
            }
            TensorType::Q5_1 => {
                numbers[..32].copy_from_slice(&plain::q5_1_numbers(block.try_into().ok()?));
                ([0; 16], half(0), half(2))
            }
            TensorType::Q2_K => {
                (k::q2_k_integers(block.try_into().ok()?, &mut numbers), half(80), half(82))
            }
            TensorType::Q3_K => {
                (k::q3_k_integers(block.try_into().ok()?, &mut numbers), half(108), 0)
            }
            TensorType::Q5_K => {
                (k::q5_k_integers(block.try_into().ok()?, &mut numbers), half(0), half(2))
            }
            TensorType::Q6_K => {
                (k::q6_k_integers(block.try_into().ok()?, &mut numbers), half(208), 0)
            }
            _ => return None,
        };
        Some(Self { numbers, sub_scales, scale, minimum })
    }

    /// Returns the offset that is subtracted from a stored number.
    pub const fn offset(kind: TensorType) -> i32 {
        match kind {
            TensorType::Q5_0 => 16,
            TensorType::Q3_K => 4,
            TensorType::Q6_K => 32,
            _ => 0,
        }
    }
}
