//! Vectorized exponential function.

use pulp::Simd;

/// Returns e^x for x ≤ 0, with an error of at most two units in the last place; 0 where e^x is
/// below the smallest normal number.
///
/// Let n be the integer nearest to x / ln 2. Then e^x = 2^n · e^r with |r| ≤ ln 2 / 2, and e^r is
/// evaluated by its Taylor series.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    const MIN: f32 = -87.3;
    // 1.5 · 2^23: adding it rounds to an integer, and leaves that integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 as a sum of two numbers. The first has trailing zeros, so its product with n is exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let splat = |value: f32| simd.splat_f32s(value);
    let tiny = simd.less_than_f32s(x, splat(MIN));
    let x = simd.select_f32s(tiny, splat(0.0), x);
    let rounded = simd.mul_add_f32s(x, splat(std::f32::consts::LOG2_E), splat(ROUND));
    let n = simd.sub_f32s(rounded, splat(ROUND));
    let r = simd.mul_add_f32s(n, splat(-LN2[0]), x);
    let r = simd.mul_add_f32s(n, splat(-LN2[1]), r);
    let mut y = splat(1.0 / 5040.0);
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        y = simd.mul_add_f32s(y, r, splat(factor));
    }
    // 2^n: the biased exponent n + 127, shifted into place.
    let bits = simd.add_u32s(simd.transmute_u32s_f32s(rounded), simd.splat_u32s(127));
    let power = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23)));
    simd.select_f32s(tiny, splat(0.0), simd.mul_f32s(y, power))
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;

    struct Exp<'a>(&'a mut [f32]);

    impl WithSimd for Exp<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for value in S::as_mut_simd_f32s(self.0).0 {
                *value = exp(simd, *value);
            }
        }
    }

    #[test]
    fn error_is_at_most_two_units_in_last_place() {
        let mut values: Vec<f32> = (0..=1 << 16).map(|i| -88.0 * i as f32 / 65_536.0).collect();
        values.extend([-1e-30, -0.0, f32::NEG_INFINITY, -1e30, f32::NAN]);
        values.resize(values.len().next_multiple_of(16), 0.0);
        let (mut best, mut plain) = (values.clone(), values.clone());
        Arch::new().dispatch(Exp(&mut best));
        Exp(&mut plain).with_simd(pulp::Scalar::new());
        for found in [best, plain] {
            for (x, found) in values.iter().zip(found) {
                let exact = f64::from(*x).exp();
                if x.is_nan() {
                    assert!(found.is_nan());
                } else if *x < -87.3 {
                    assert_eq!(found, 0.0, "{x}");
                } else {
                    let error = (f64::from(found) - exact).abs() / exact;
                    assert!(error < 2.0 * f64::from(f32::EPSILON), "{x}: {error:e}");
                }
            }
        }
    }
}
