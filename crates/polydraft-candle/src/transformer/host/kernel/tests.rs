use pulp::Arch;

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
fn exponentials_are_right_to_two_units() {
    let mut values: Vec<f32> = (0..=1 << 16).map(|i| -88.0 * i as f32 / 65_536.0).collect();
    values.extend([-1e-30, -0.0, f32::NEG_INFINITY, -1e30, f32::NAN]);
    values.resize(values.len().next_multiple_of(PAGE), 0.0);
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
