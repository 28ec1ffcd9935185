//! Activation functions of feed-forward layers: f(x), or f(x) · up for rows `[x, up]` of gated
//! layers.
//!
//! Each row is processed in one vectorized pass. Three scalar passes over half rows on one thread
//! took a tenth of the time of a batch's products.

use libm::erff;
use pulp::{Arch, Simd, WithSimd};

use crate::exp::exp;
use crate::pool;
use crate::rows::Rows;

/// Minimum number of elements per thread.
const MIN_WORK: usize = 1 << 14;

/// An elementwise activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x)
    Silu,
    /// x · Φ(x)
    Gelu,
    /// The tanh approximation of `Gelu`.
    GeluTanh,
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    ReluSquared,
    /// The activation of gpt-oss: x · sigmoid(1.702 x) with x capped at 7, times 1 + up with up
    /// clamped to −7..7.
    Clamped,
}

/// Limit of x and up in [`Activation::Clamped`].
const LIMIT: f32 = 7.0;
/// Factor of x in the sigmoid of [`Activation::Clamped`].
const SLOPE: f32 = 1.702;

impl Activation {
    /// Returns `[rows, inner]` for an input of `[rows, 2 · inner]` if gated, else `[rows, inner]`.
    pub fn forward(self, x: &Rows, inner: usize, gated: bool) -> Rows {
        let mut out = vec![0f32; x.count() * inner];
        let rows = x.numbers().chunks_exact(x.width().max(1));
        let rows = out.chunks_exact_mut(inner.max(1)).zip(rows);
        let arch = Arch::new();
        pool::parallel_for_each(rows.collect(), MIN_WORK / inner.max(1) + 1, |(out, row)| {
            let (x, up) = row.split_at(inner);
            arch.dispatch(Row { activation: self, out, x, up: gated.then_some(up) });
        });
        Rows::new(out, inner)
    }
}

struct Row<'a> {
    activation: Activation,
    out: &'a mut [f32],
    x: &'a [f32],
    up: Option<&'a [f32]>,
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { activation, out, x, up } = self;
        if activation == Activation::Gelu {
            for (out, x) in out.iter_mut().zip(x) {
                *out = 0.5 * x * (1.0 + erff(x * std::f32::consts::FRAC_1_SQRT_2));
            }
        } else {
            let ((outs, out_rest), (xs, x_rest)) = (S::as_mut_simd_f32s(out), S::as_simd_f32s(x));
            for (out, x) in outs.iter_mut().zip(xs) {
                *out = vector(simd, activation, *x);
            }
            if !out_rest.is_empty() {
                simd.partial_store_f32s(
                    out_rest,
                    vector(simd, activation, simd.partial_load_f32s(x_rest)),
                );
            }
        }
        if let (Some(up), Activation::Clamped) = (up, activation) {
            for (out, up) in out.iter_mut().zip(up) {
                *out *= up.clamp(-LIMIT, LIMIT) + 1.0;
            }
        } else if let Some(up) = up {
            out.iter_mut().zip(up).for_each(|(out, up)| *out *= up);
        }
    }
}

/// Applies an activation to one vector. All but `Gelu`, which uses `erff`.
#[inline(always)]
fn vector<S: Simd>(simd: S, activation: Activation, x: S::f32s) -> S::f32s {
    let splat = |value: f32| simd.splat_f32s(value);
    match activation {
        Activation::Relu => simd.max_f32s(x, splat(0.0)),
        Activation::ReluSquared => {
            let x = simd.max_f32s(x, splat(0.0));
            simd.mul_f32s(x, x)
        }
        Activation::Clamped => {
            let x = simd.min_f32s(x, splat(LIMIT));
            times_sigmoid(simd, x, simd.mul_f32s(x, splat(SLOPE)))
        }
        // ½ · (1 + tanh(z)) is sigmoid(2z).
        Activation::GeluTanh => {
            let twice =
                splat(2.0 * std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2);
            let cubic = simd.mul_add_f32s(simd.mul_f32s(x, x), splat(0.044_715), splat(1.0));
            times_sigmoid(simd, x, simd.mul_f32s(simd.mul_f32s(x, twice), cubic))
        }
        Activation::Silu | Activation::Gelu => times_sigmoid(simd, x, x),
    }
}

/// Returns x · sigmoid(z). To avoid overflow it uses e = e^−|z|: sigmoid(z) is 1 / (1 + e) for
/// positive z, and e / (1 + e) for negative z.
#[inline(always)]
fn times_sigmoid<S: Simd>(simd: S, x: S::f32s, z: S::f32s) -> S::f32s {
    let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
    let e = exp(simd, simd.neg_f32s(simd.abs_f32s(z)));
    let numerator = simd.select_f32s(simd.less_than_f32s(z, zero), e, one);
    simd.div_f32s(simd.mul_f32s(x, numerator), simd.add_f32s(one, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns f(x) by its formula, in double precision; Φ by the series of the error function.
    fn formula(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Activation::GeluTanh => {
                let z = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3));
                x / (1.0 + (-2.0 * z).exp())
            }
            Activation::Relu => x.max(0.0),
            Activation::ReluSquared => x.max(0.0).powi(2),
            Activation::Clamped => {
                let x = x.min(7.0);
                x / (1.0 + (-1.702 * x).exp())
            }
        }
    }

    /// 2 / √π · Σ (−1)ⁿ z²ⁿ⁺¹ / (n! (2n + 1)), for |z| up to 5; beyond that it is ±1.
    fn erf(z: f64) -> f64 {
        if z.abs() > 5.0 {
            return z.signum();
        }
        let (mut sum, mut power) = (0.0, z);
        for n in 0..200 {
            sum += power / f64::from(2 * n + 1);
            power *= -z * z / f64::from(n + 1);
        }
        std::f64::consts::FRAC_2_SQRT_PI * sum
    }

    /// Checks that results are within `tolerance(exact, up)` of the formula, and that a row's
    /// result does not depend on other rows.
    fn check(activation: Activation, size: f32, tolerance: impl Fn(f64, f64) -> f64) {
        const INNER: usize = 1003;
        let values: Vec<f32> =
            (0..40 * 2 * INNER).map(|i| ((i as f32) * 1.618).sin() * size).collect();
        for gated in [true, false] {
            let width = if gated { 2 * INNER } else { INNER };
            let forward = |values: &[f32]| {
                activation.forward(&Rows::new(values.to_vec(), width), INNER, gated).into_numbers()
            };
            let all = forward(&values);
            assert_eq!(all.len(), values.len() / width * INNER);
            for (row, found) in values.chunks(width).zip(all.chunks(INNER)) {
                assert_eq!(forward(row), found);
                for (i, found) in found.iter().enumerate() {
                    let x = f64::from(row[i]);
                    let up = if gated { f64::from(row[INNER + i]) } else { 1.0 };
                    let up = match activation {
                        Activation::Clamped if gated => up.clamp(-7.0, 7.0) + 1.0,
                        _ => up,
                    };
                    let exact = formula(activation, x) * up;
                    let error = (f64::from(*found) - exact).abs();
                    assert!(
                        error <= tolerance(exact, up),
                        "{activation:?} of {x}, {up}: {found}, {exact}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_match_formula_and_do_not_depend_on_other_rows() {
        for activation in [
            Activation::Silu,
            Activation::GeluTanh,
            Activation::Relu,
            Activation::ReluSquared,
            Activation::Clamped,
        ] {
            // The rounding error of an exponent of up to 87 is relative in the result.
            check(activation, 100.0, |exact, _| 1e-5 * exact.abs() + 1e-30);
        }
    }

    #[test]
    fn exact_gelu_matches_formula() {
        check(Activation::Gelu, 6.0, |exact, up| 1e-6 * exact.abs() + 1e-6 * up.abs());
    }
}
