//! What a feed-forward's inner numbers become: f(x), or with a gate f(x) · up, for [x, up] side by
//! side.
//!
//! On a processor it is ours: as tensor operations it is three passes over halves of rows, number
//! by number and on one thread, which of a batch takes as long as a tenth of the products.

use candle_core::cpu::erf::erf_f32;
use candle_core::{Result, Tensor};
use pulp::{Arch, Simd, WithSimd};

use super::exp::exp;
use crate::config::Activation;
use crate::packed::pool;
use crate::rows::Rows;

/// Numbers that are worth another thread.
const GRAIN: usize = 1 << 14;

impl Activation {
    /// From `[rows, 2 · inner]` with a gate, from `[rows, inner]` without one, to `[rows, inner]`.
    pub(super) fn forward(self, x: Rows, inner: usize, gated: bool) -> Result<Rows> {
        match x {
            Rows::Host { numbers, width } => {
                let mut out = vec![0f32; numbers.len() / width.max(1) * inner];
                let rows =
                    out.chunks_exact_mut(inner.max(1)).zip(numbers.chunks_exact(width.max(1)));
                let arch = Arch::new();
                pool::each(rows.collect(), GRAIN / inner.max(1) + 1, |(out, row)| {
                    let (x, up) = row.split_at(inner);
                    arch.dispatch(Row { activation: self, out, x, up: gated.then_some(up) });
                });
                Ok(Rows::Host { numbers: out, width: inner })
            }
            Rows::Card(x) if gated => {
                let gate = self.of_tensor(&x.narrow(1, 0, inner)?)?;
                (gate * x.narrow(1, inner, inner)?).map(Rows::Card)
            }
            Rows::Card(x) => self.of_tensor(&x).map(Rows::Card),
        }
    }

    fn of_tensor(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::Relu => x.relu(),
        }
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
                *out = 0.5 * x * (1.0 + erf_f32(x * std::f32::consts::FRAC_1_SQRT_2));
            }
        } else {
            let ((outs, out_rest), (xs, x_rest)) = (S::as_mut_simd_f32s(out), S::as_simd_f32s(x));
            for (out, x) in outs.iter_mut().zip(xs) {
                *out = one(simd, activation, *x);
            }
            if !out_rest.is_empty() {
                simd.partial_store_f32s(
                    out_rest,
                    one(simd, activation, simd.partial_load_f32s(x_rest)),
                );
            }
        }
        if let Some(up) = up {
            out.iter_mut().zip(up).for_each(|(out, up)| *out *= up);
        }
    }
}

/// A vector of one of those that are made of sigmoids, or of none.
#[inline(always)]
fn one<S: Simd>(simd: S, activation: Activation, x: S::f32s) -> S::f32s {
    let splat = |value: f32| simd.splat_f32s(value);
    match activation {
        Activation::Relu => simd.max_f32s(x, splat(0.0)),
        // ½ · (1 + tanh(z)) is sigmoid(2z).
        Activation::GeluTanh => {
            let twice =
                splat(2.0 * std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2);
            let cubic = simd.mul_add_f32s(simd.mul_f32s(x, x), splat(0.044_715), splat(1.0));
            of_sigmoid(simd, x, simd.mul_f32s(simd.mul_f32s(x, twice), cubic))
        }
        Activation::Silu | Activation::Gelu => of_sigmoid(simd, x, x),
    }
}

/// x · sigmoid(z). With e = e^−|z| no number overflows: sigmoid(z) is 1 / (1 + e), or e / (1 + e)
/// for negative z.
#[inline(always)]
fn of_sigmoid<S: Simd>(simd: S, x: S::f32s, z: S::f32s) -> S::f32s {
    let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
    let e = exp(simd, simd.neg_f32s(simd.abs_f32s(z)));
    let above = simd.select_f32s(simd.less_than_f32s(z, zero), e, one);
    simd.div_f32s(simd.mul_f32s(x, above), simd.add_f32s(one, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_their_formulas_and_a_row_does_not_depend_on_its_company() {
        const INNER: usize = 1003;
        let values: Vec<f32> =
            (0..40 * 2 * INNER).map(|i| ((i as f32) * 1.618).sin() * 100.0).collect();
        let formula = |activation: Activation, x: f64| match activation {
            Activation::GeluTanh => {
                let z = std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3));
                x / (1.0 + (-2.0 * z).exp())
            }
            Activation::Relu => x.max(0.0),
            _ => x / (1.0 + (-x).exp()),
        };
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::Relu] {
            for gated in [true, false] {
                let width = if gated { 2 * INNER } else { INNER };
                let forward = |values: &[f32]| {
                    let x = Rows::Host { numbers: values.to_vec(), width };
                    activation.forward(x, INNER, gated).unwrap().into_numbers().unwrap()
                };
                let together = forward(&values);
                assert_eq!(together.len(), values.len() / width * INNER);
                for (row, found) in values.chunks(width).zip(together.chunks(INNER)) {
                    assert_eq!(forward(row), found);
                    for (i, found) in found.iter().enumerate() {
                        let (x, up) = (
                            f64::from(row[i]),
                            if gated { f64::from(row[INNER + i]) } else { 1.0 },
                        );
                        let exact = formula(activation, x) * up;
                        let error = (f64::from(*found) - exact).abs();
                        // An exponent is off by its own rounding, so far as it matters: up to 87.
                        assert!(
                            error <= 1e-5 * exact.abs() + 1e-30,
                            "{activation:?} of {x}, {up}: {found}, {exact}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn tensors_say_the_same() {
        const INNER: usize = 45;
        let values: Vec<f32> =
            (0..3 * 2 * INNER).map(|i| ((i as f32) * 1.618).sin() * 6.0).collect();
        for activation in
            [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu]
        {
            for gated in [true, false] {
                let width = if gated { 2 * INNER } else { INNER };
                let host = Rows::Host { numbers: values.clone(), width };
                let shape = (values.len() / width, width);
                let card = Tensor::from_slice(&values, shape, &candle_core::Device::Cpu).unwrap();
                let numbers =
                    |x: Rows| activation.forward(x, INNER, gated).unwrap().into_numbers().unwrap();
                for (found, expected) in numbers(host).iter().zip(numbers(Rows::Card(card))) {
                    assert!((found - expected).abs() < 2e-5, "{activation:?}: {found}, {expected}");
                }
            }
        }
    }
}
