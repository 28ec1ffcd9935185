//! Blocks as the integers that they are made of.

use half::f16;

use super::{k, plain};
use crate::tensor_type::TensorType;

/// A block of a type whose numbers have 2, 3, 5 or 6 bits, taken apart: for those who hold blocks
/// in an order of their own.
///
/// Number i is `scale · (numbers[i] − offset)`, less a minimum in types that have one.
#[derive(Debug, Clone, PartialEq)]
pub struct Integers {
    /// The numbers, from 0 on; of blocks of 32 the first 32.
    pub numbers: [u8; 256],
    /// What the scale is multiplied with for every 16 numbers. `Q2_K`: the lower half of each byte,
    /// the upper is the minimum's. `Q3_K`, `Q6_K`: signed bytes. `Q5_K`: 8 for every 32 numbers,
    /// then 8 for their minima. Else nothing.
    pub sub_scales: [u8; 16],
    /// The scale, as the bits of an f16.
    pub scale: u16,
    /// The minimum: to be subtracted (`Q2_K`, `Q5_K`) or added (`Q5_1`); 0 where there is none.
    pub minimum: u16,
}

impl Integers {
    /// Takes a block apart; `None` for types of other kinds, and bytes that are no block.
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

    /// What is to be subtracted from a number as it is stored.
    pub const fn offset(kind: TensorType) -> i32 {
        match kind {
            TensorType::Q5_0 => 16,
            TensorType::Q3_K => 4,
            TensorType::Q6_K => 32,
            _ => 0,
        }
    }
}
