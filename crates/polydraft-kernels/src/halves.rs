//! Conversion of f16 to f32 by integer shifts, which the compiler vectorizes for any target. A
//! portable build cannot use the CPU's conversion instruction.

/// Converts a finite f16, given by its bits, to f32.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    /// Difference of the exponent biases.
    const BIAS: u32 = (127 - 15) << 23;
    /// The smallest normal f16, 2^-14, as f32.
    const MIN_NORMAL: u32 = (127 - 14) << 23;
    let bits = u32::from(half & 0x7fff) << 13;
    // Subnormals: place the mantissa after the exponent of 2^-14, then subtract 2^-14.
    let small = f32::from_bits(bits + MIN_NORMAL) - f32::from_bits(MIN_NORMAL);
    let normal = f32::from_bits(bits + BIAS);
    let size = if half & 0x7c00 == 0 { small } else { normal };
    f32::from_bits(size.to_bits() | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn converts_all_finite_f16_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(f16_to_f32(bits).to_bits(), half.to_f32().to_bits(), "{half:?}");
            }
        }
    }
}
