//! Floating-point numbers of 8 bits.
//!
//! Source: OCP 8-bit Floating Point Specification (E4M3, E5M2); OCP Microscaling (MX) v1.0 (E8M0).

use half::f16;

/// Value of an E4M3 number: a sign, four bits of exponent, three of mantissa, no infinities. The
/// bits are those of f16 with an exponent bias of 7 instead of 15, subnormal numbers included.
pub(super) fn e4m3(byte: u8) -> f32 {
    let size = byte & 0x7f;
    if size == 0x7f {
        return f32::NAN;
    }
    let value = f16::from_bits(u16::from(size) << 7).to_f32() * 256.0;
    if byte == size { value } else { -value }
}

/// Value of an E5M2 number, the upper byte of an f16.
pub(super) fn e5m2(byte: u8) -> f32 {
    f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// Value of an E8M0 number, a power of two.
pub(super) fn e8m0(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        // 2⁻¹²⁷, which is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value by the formats' definition: sign, exponent and mantissa.
    fn defined(byte: u8, mantissa_bits: i32, bias: i32) -> f64 {
        let bits = i32::from(byte & 0x7f);
        let (exponent, mantissa) = (bits >> mantissa_bits, bits & ((1 << mantissa_bits) - 1));
        let part = f64::from(mantissa) / f64::from(1 << mantissa_bits);
        let size = match exponent {
            0 => part * 2f64.powi(1 - bias),
            _ => (1.0 + part) * 2f64.powi(exponent - bias),
        };
        if byte < 128 { size } else { -size }
    }

    #[test]
    fn every_byte_has_the_value_of_the_format() {
        for byte in 0..=255u8 {
            let (narrow, wide) = (e4m3(byte), e5m2(byte));
            match byte & 0x7f {
                0x7f => assert!(narrow.is_nan(), "{byte}"),
                _ => assert_eq!(f64::from(narrow), defined(byte, 3, 7), "{byte}"),
            }
            match byte & 0x7f {
                0x7d.. => assert!(wide.is_nan(), "{byte}"),
                0x7c => assert!(wide.is_infinite(), "{byte}"),
                _ => assert_eq!(f64::from(wide), defined(byte, 2, 15), "{byte}"),
            }
            assert_eq!(narrow.is_sign_negative() || byte & 0x7f == 0x7f, byte >= 127, "{byte}");
        }
        assert_eq!([e4m3(0x7e), e4m3(1)], [448.0, 2f32.powi(-9)]);
        assert_eq!([e8m0(127), e8m0(128), e8m0(254)], [1.0, 2.0, 2f32.powi(127)]);
        assert_eq!(f64::from(e8m0(0)), 2f64.powi(-127));
    }
}
