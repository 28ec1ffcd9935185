//! Helpers for rounding to few bits.

use super::block::COLUMNS;

/// 1.5 · 2^23: the sum of it and a small number has that number, rounded half to even, in its
/// lowest bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Returns the largest absolute value. Compares bit patterns as integers, which vectorizes.
#[inline(always)]
pub(super) fn largest(values: &[f32; COLUMNS]) -> f32 {
    let mut largest = 0u32;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest)
}
