//! RMS and layer norms of rows.

use pulp::{Arch, Simd, WithSimd};

use crate::error::{Error, Result};
use crate::pool;
use crate::rows::Rows;

/// Minimum number of elements per thread.
const MIN_WORK: usize = 1 << 13;

/// A norm, with its parameters: weight and bias have one number per column.
#[derive(Debug, Clone)]
pub enum Norm {
    /// x / √(mean of x² + ε) · weight
    Rms {
        /// Factors by column.
        weight: Vec<f32>,
        /// ε
        epsilon: f32,
    },
    /// (x − mean) / √(variance + ε) · weight + bias
    Layer {
        /// Factors by column.
        weight: Vec<f32>,
        /// Terms by column.
        bias: Vec<f32>,
        /// ε
        epsilon: f32,
    },
}

impl Norm {
    /// Returns the normalized rows.
    ///
    /// # Errors
    /// Rows of another width than the weight.
    pub fn forward(&self, x: &Rows) -> Result<Rows> {
        let mut y = x.clone();
        self.apply(y.numbers_mut())?;
        Ok(y)
    }

    /// Normalizes contiguous rows in place, each as wide as the weight.
    ///
    /// # Errors
    /// A length that is not a multiple of the width.
    pub fn apply(&self, rows: &mut [f32]) -> Result<()> {
        let (weight, bias, epsilon) = match self {
            Self::Rms { weight, epsilon } => (weight, None, *epsilon),
            Self::Layer { weight, bias, epsilon } => (weight, Some(&bias[..]), *epsilon),
        };
        let width = weight.len().max(1);
        if !rows.len().is_multiple_of(width) {
            return Err(Error::Shape {
                operation: "norm",
                expected: format!("rows of {width} numbers"),
                got: format!("{} in all", rows.len()),
            });
        }
        let arch = Arch::new();
        let rows: Vec<&mut [f32]> = rows.chunks_exact_mut(width).collect();
        pool::parallel_for_each(rows, MIN_WORK / width + 1, |row| {
            arch.dispatch(Row { row, weight, bias, epsilon })
        });
        Ok(())
    }
}

/// Normalizes one row. With a bias, subtracts the mean first (layer norm).
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

/// Returns the sum of the numbers, or of their squares.
#[inline(always)]
fn sum<S: Simd, const SQUARES: bool>(simd: S, row: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(row);
    // Four independent accumulators hide the latency of additions.
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (fours, last) = vectors.as_chunks::<4>();
    for four in fours {
        for (sum, x) in sums.iter_mut().zip(four) {
            *sum = accumulate::<S, SQUARES>(simd, *sum, *x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(last) {
        *sum = accumulate::<S, SQUARES>(simd, *sum, *x);
    }
    // A partial vector is padded with zeros.
    let [a, b, c, d] = sums;
    let d = accumulate::<S, SQUARES>(simd, d, simd.partial_load_f32s(rest));
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

#[inline(always)]
fn accumulate<S: Simd, const SQUARES: bool>(simd: S, sum: S::f32s, x: S::f32s) -> S::f32s {
    if SQUARES { simd.mul_add_f32s(x, x, sum) } else { simd.add_f32s(sum, x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the norm of a row by its formula, in double precision.
    fn expected(norm: &Norm, row: &[f32]) -> Vec<f64> {
        let (weight, bias, epsilon) = match norm {
            Norm::Rms { weight, epsilon } => (weight, None, *epsilon),
            Norm::Layer { weight, bias, epsilon } => (weight, Some(bias), *epsilon),
        };
        let count = row.len() as f64;
        let x: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        let mean = bias.map_or(0.0, |_| x.iter().sum::<f64>() / count);
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + f64::from(epsilon)).sqrt();
        let normed = x.iter().zip(weight).map(|(x, w)| (x - mean) * factor * f64::from(*w));
        normed.enumerate().map(|(i, y)| y + bias.map_or(0.0, |bias| f64::from(bias[i]))).collect()
    }

    #[test]
    fn rows_match_formula_and_do_not_depend_on_other_rows() {
        for width in [1, 7, 64, 576, 1003] {
            let values = |count: usize, seed: f32| -> Vec<f32> {
                (0..count).map(|i| ((i as f32 + seed) * 1.618).sin() * 3.0 + 0.5).collect()
            };
            let (x, weight, bias) =
                (values(70 * width, 0.3), values(width, 0.7), values(width, 0.1));
            let epsilon = 1e-5;
            let norms = [
                Norm::Rms { weight: weight.clone(), epsilon },
                Norm::Layer { weight, bias, epsilon },
            ];
            for norm in &norms {
                let forward = |numbers: &[f32]| {
                    norm.forward(&Rows::new(numbers.to_vec(), width)).unwrap().into_numbers()
                };
                for (row, found) in x.chunks(width).zip(forward(&x).chunks(width)) {
                    assert_eq!(forward(row), found);
                    for (found, expected) in found.iter().zip(expected(norm, row)) {
                        // The variance of a single number is 0, so its norm is rounding error.
                        assert!(
                            width == 1 || (f64::from(*found) - expected).abs() < 2e-5,
                            "{width}: {found}, {expected}"
                        );
                    }
                }
            }
            assert!(width == 1 || norms[0].apply(&mut vec![0.0; width + 1]).is_err());
        }
    }
}
