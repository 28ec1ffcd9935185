//! What all that rounds to few bits has in common.

use super::block::COLUMNS;

/// 1.5 · 2^23: added to a small number, it leaves that number, rounded to even, in the lowest bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// The largest size; a maximum of bits, which vectors have.
#[inline(always)]
pub(super) fn largest(values: &[f32; COLUMNS]) -> f32 {
    let mut largest = 0u32;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest)
}
