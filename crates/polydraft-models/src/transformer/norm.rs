//! Norms, and where a block has them.

use candle_core::{Result, Tensor, bail};
use candle_nn::ops::{layer_norm, rms_norm};
use pulp::{Arch, Simd, WithSimd};

use crate::packed::pool;
use crate::rows::{Rows, apart};

/// Numbers that are worth another thread.
const GRAIN: usize = 1 << 15;

/// One norm of rows; weight and bias are one row.
#[derive(Debug, Clone)]
pub(crate) enum Norm {
    /// x / √(mean of x² + ε) · weight
    Rms { weight: Rows, epsilon: f32 },
    /// (x − mean) / √(variance + ε) · weight + bias
    Layer { weight: Rows, bias: Rows, epsilon: f32 },
}

impl Norm {
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        match x {
            Rows::Card(x) => self.on_card(x).map(Rows::Card),
            Rows::Host { numbers, width } => {
                let mut numbers = numbers.clone();
                self.on_host(&mut numbers)?;
                Ok(Rows::Host { numbers, width: *width })
            }
        }
    }

    /// Of rows as wide as the weight that follow each other in memory.
    pub fn on_host(&self, rows: &mut [f32]) -> Result<()> {
        let (weight, bias, epsilon) = match self {
            Self::Rms { weight: Rows::Host { numbers: weight, .. }, epsilon } => {
                (weight, None, *epsilon)
            }
            Self::Layer {
                weight: Rows::Host { numbers: weight, .. },
                bias: Rows::Host { numbers: bias, .. },
                epsilon,
            } => (weight, Some(&bias[..]), *epsilon),
            _ => return apart("norm"),
        };
        let width = weight.len().max(1);
        if !rows.len().is_multiple_of(width) {
            bail!("norm: expected rows of {width} numbers, got {} in all", rows.len());
        }
        let arch = Arch::new();
        let rows: Vec<&mut [f32]> = rows.chunks_exact_mut(width).collect();
        pool::each(rows, GRAIN / width + 1, |row| {
            arch.dispatch(Row { row, weight, bias, epsilon })
        });
        Ok(())
    }

    /// Likewise, over the last dimension of a tensor.
    pub fn on_card(&self, x: &Tensor) -> Result<Tensor> {
        let row = |row: &Rows| match row {
            Rows::Card(row) => row.flatten_all(),
            Rows::Host { .. } => apart("norm"),
        };
        match self {
            Self::Rms { weight, epsilon } => rms_norm(x, &row(weight)?, *epsilon),
            Self::Layer { weight, bias, epsilon } => {
                layer_norm(x, &row(weight)?, &row(bias)?, *epsilon)
            }
        }
    }
}

/// The norms of a block f: x becomes after(x + behind(f(before(x)))).
#[derive(Debug, Clone, Default)]
pub(crate) struct Norms {
    pub before: Option<Norm>,
    pub behind: Option<Norm>,
    pub after: Option<Norm>,
}

impl Norms {
    pub fn around(&self, x: Rows, block: impl FnOnce(&Rows) -> Result<Rows>) -> Result<Rows> {
        let mut y = match &self.before {
            None => block(&x)?,
            Some(norm) => block(&norm.forward(&x)?)?,
        };
        if let Some(norm) = &self.behind {
            y = norm.forward(&y)?;
        }
        let x = x.add(&y)?;
        match &self.after {
            None => Ok(x),
            Some(norm) => norm.forward(&x),
        }
    }
}

/// One row; with a bias its mean is taken away first.
struct Row<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    epsilon: f32,
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { row, weight, bias, epsilon } = self;
        let count = row.len() as f32;
        if bias.is_some() {
            let mean = sum::<S, false>(simd, row) / count;
            let (vectors, rest) = S::as_mut_simd_f32s(row);
            for x in vectors {
                *x = simd.sub_f32s(*x, simd.splat_f32s(mean));
            }
            rest.iter_mut().for_each(|x| *x -= mean);
        }
        let squares = sum::<S, true>(simd, row);
        let factor = 1.0 / (squares / count + epsilon).sqrt();
        let (vectors, rest) = S::as_mut_simd_f32s(row);
        let (weights, weights_rest) = S::as_simd_f32s(weight);
        for (x, weight) in vectors.iter_mut().zip(weights) {
            *x = simd.mul_f32s(simd.mul_f32s(*x, simd.splat_f32s(factor)), *weight);
        }
        for (x, weight) in rest.iter_mut().zip(weights_rest) {
            *x = *x * factor * weight;
        }
        if let Some(bias) = bias {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    }
}

/// Σ of the numbers, or of their squares.
#[inline(always)]
fn sum<S: Simd, const SQUARES: bool>(simd: S, row: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(row);
    // Four sums: additions that need not wait for each other.
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (fours, last) = vectors.as_chunks::<4>();
    for four in fours {
        for (sum, x) in sums.iter_mut().zip(four) {
            *sum = added::<S, SQUARES>(simd, *sum, *x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(last) {
        *sum = added::<S, SQUARES>(simd, *sum, *x);
    }
    // Zeros where a vector is not full.
    let [a, b, c, d] = sums;
    let d = added::<S, SQUARES>(simd, d, simd.partial_load_f32s(rest));
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

#[inline(always)]
fn added<S: Simd, const SQUARES: bool>(simd: S, sum: S::f32s, x: S::f32s) -> S::f32s {
    if SQUARES { simd.mul_add_f32s(x, x, sum) } else { simd.add_f32s(sum, x) }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn norms_are_those_of_tensors_and_a_row_does_not_depend_on_its_company() {
        for width in [1, 7, 64, 576, 1003] {
            let values = |count: usize, seed: f32| -> Vec<f32> {
                (0..count).map(|i| ((i as f32 + seed) * 1.618).sin() * 3.0 + 0.5).collect()
            };
            let (x, weight, bias) =
                (values(70 * width, 0.3), values(width, 0.7), values(width, 0.1));
            let host = |numbers: &[f32]| Rows::Host { numbers: numbers.to_vec(), width };
            let card = |numbers: &[f32]| {
                Rows::Card(
                    Tensor::from_slice(numbers, (numbers.len() / width, width), &Device::Cpu)
                        .unwrap(),
                )
            };
            let epsilon = 1e-5;
            let norms = |rows: &dyn Fn(&[f32]) -> Rows| {
                let weight = rows(&weight);
                [
                    Norm::Rms { weight: weight.clone(), epsilon },
                    Norm::Layer { weight, bias: rows(&bias), epsilon },
                ]
            };
            for (own, tensors) in norms(&host).iter().zip(norms(&card)) {
                let found = own.forward(&host(&x)).unwrap().into_numbers().unwrap();
                let expected = tensors.forward(&card(&x)).unwrap().into_numbers().unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    // A single number is its own mean, and what is left of it is rounding.
                    assert!(
                        width == 1 || (found - expected).abs() < 2e-5,
                        "{width}: {found}, {expected}"
                    );
                }
                for (row, found) in x.chunks(width).zip(found.chunks(width)) {
                    assert_eq!(own.forward(&host(row)).unwrap().into_numbers().unwrap(), found);
                }
            }
            assert!(width == 1 || norms(&host)[0].on_host(&mut vec![0.0; width + 1]).is_err());
        }
    }
}
