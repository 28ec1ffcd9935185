//! Numbers of 16 bits, widened by shifts: the compiler makes vectors of them wherever the loop
//! lands, and a portable build has no such instruction of the CPU's.

/// A half that is finite.
#[inline(always)]
pub(crate) fn widened(half: u16) -> f32 {
    /// What the exponents differ by.
    const BIAS: u32 = (127 - 15) << 23;
    /// The smallest normal half, 2^-14.
    const LEAST: u32 = (127 - 14) << 23;
    let bits = u32::from(half & 0x7fff) << 13;
    // Below the normal ones: the number's bits after those of 2^-14, less 2^-14.
    let small = f32::from_bits(bits + LEAST) - f32::from_bits(LEAST);
    let normal = f32::from_bits(bits + BIAS);
    let size = if half & 0x7c00 == 0 { small } else { normal };
    f32::from_bits(size.to_bits() | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn all_halves_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(widened(bits).to_bits(), half.to_f32().to_bits(), "{half:?}");
            }
        }
    }
}
