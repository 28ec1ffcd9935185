//! Search of the scale (and minimum) that minimizes a block's weighted rounding error.
//!
//! Source: ggml's `make_qkx2_quants` and `make_qx_quants` (Kawrakow 2023). For several widths of
//! the grid, values are rounded to integers, and the scale (and minimum) is fitted to these
//! integers by least squares. The fit with the least error wins.
//! Complexity: one pass over the block per entry of [`GRID_WIDTHS`].
//! Deviations:
//! 1. The weight of an error is the importance of its column only, not multiplied by the value.
//! 2. The unchanged range is tried first, and replaced only by a smaller error. So values that are
//!    already on a grid stay unchanged.

use pulp::{Arch, Simd, WithSimd};

use crate::packed::block::COLUMNS;
use crate::packed::round::ROUND;

/// Widths of the grid relative to the range of the values, in steps. With negative ones, the ends
/// are clamped.
const GRID_WIDTHS: [f32; 12] =
    [0.0, -1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0];
/// Targets for the value of the largest size, on the grid. −8 comes first: it is used without a
/// search.
const ENDS: [f32; 12] = [-8.0, -9.5, -9.0, -8.5, -7.5, -7.0, -6.5, -6.0, 9.0, 8.0, 7.5, 7.0];

/// Returns the scale and minimum of numbers from 0 to `top`, for values in `range`.
pub(super) fn fit_line(
    values: &[f32; COLUMNS],
    weights: &[f32; COLUMNS],
    range: [f32; 2],
    top: f32,
) -> [f32; 2] {
    Arch::new().dispatch(Line { values, weights, range, top })
}

/// Returns the scale of numbers from −8 to 7. `largest` is the value of the largest size.
pub(super) fn fit_scale(values: &[f32; COLUMNS], weights: &[f32; COLUMNS], largest: f32) -> f32 {
    Arch::new().dispatch(Scale { values, weights, largest })
}

// Explicit vectors, because the compiler unrolls plain loops of a constant length without
// vectorizing them. No closures, because they do not inherit the target features of the function
// around them.

/// Rounds to the nearest integers in a range.
#[inline(always)]
fn round_clamped<S: Simd>(simd: S, x: S::f32s, range: [f32; 2]) -> S::f32s {
    let round = simd.splat_f32s(ROUND);
    let within =
        simd.min_f32s(simd.max_f32s(x, simd.splat_f32s(range[0])), simd.splat_f32s(range[1]));
    simd.sub_f32s(simd.add_f32s(within, round), round)
}

/// Sums the lanes of each vector.
#[inline(always)]
fn reduce_sums<S: Simd, const N: usize>(simd: S, sums: [S::f32s; N]) -> [f64; N] {
    let mut totals = [0.0; N];
    for (total, sum) in totals.iter_mut().zip(sums) {
        *total = f64::from(simd.reduce_sum_f32s(sum));
    }
    totals
}

struct Line<'a> {
    values: &'a [f32; COLUMNS],
    weights: &'a [f32; COLUMNS],
    range: [f32; 2],
    top: f32,
}

impl WithSimd for Line<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f32; 2] {
        let Self { range: [min, max], top, .. } = self;
        let (values, weights) = (S::as_simd_f32s(self.values).0, S::as_simd_f32s(self.weights).0);
        let (zero, lowest) = (simd.splat_f32s(0.0), simd.splat_f32s(min));
        let mut sums = [zero; 3];
        for (value, weight) in values.iter().zip(weights) {
            let above = simd.sub_f32s(*value, lowest);
            let weighed = simd.mul_f32s(*weight, above);
            sums[0] = simd.add_f32s(*weight, sums[0]);
            sums[1] = simd.add_f32s(weighed, sums[1]);
            sums[2] = simd.mul_add_f32s(weighed, above, sums[2]);
        }
        let [all, first, second] = reduce_sums(simd, sums);
        let mut best = (f64::INFINITY, [(max - min) / top, min]);
        for wider in GRID_WIDTHS {
            let factor = simd.splat_f32s((top + wider) / (max - min));
            let mut sums = [zero; 3];
            for (value, weight) in values.iter().zip(weights) {
                let above = simd.sub_f32s(*value, lowest);
                let number = round_clamped(simd, simd.mul_f32s(above, factor), [0.0, top]);
                let weighed = simd.mul_f32s(*weight, number);
                sums[0] = simd.add_f32s(weighed, sums[0]);
                sums[1] = simd.mul_add_f32s(weighed, number, sums[1]);
                sums[2] = simd.mul_add_f32s(weighed, above, sums[2]);
            }
            let [sum, squares, products] = reduce_sums(simd, sums);
            let determinant = all * squares - sum * sum;
            let scale = (all * products - sum * first) / determinant;
            let minimum = (squares * first - sum * products) / determinant;
            let error = second
                + scale * scale * squares
                + minimum * minimum * all
                + 2.0 * scale * minimum * sum
                - 2.0 * scale * products
                - 2.0 * minimum * first;
            // False for NaN: blocks of a single value, or weights that are NaN.
            if error < best.0 {
                best = (error, [scale as f32, minimum as f32 + min]);
            }
        }
        best.1
    }
}

struct Scale<'a> {
    values: &'a [f32; COLUMNS],
    weights: &'a [f32; COLUMNS],
    largest: f32,
}

impl WithSimd for Scale<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (values, weights) = (S::as_simd_f32s(self.values).0, S::as_simd_f32s(self.weights).0);
        let mut best = (0.0, self.largest / ENDS[0]);
        for end in ENDS {
            let factor = simd.splat_f32s(end / self.largest);
            let mut sums = [simd.splat_f32s(0.0); 2];
            for (value, weight) in values.iter().zip(weights) {
                let number = round_clamped(simd, simd.mul_f32s(*value, factor), [-8.0, 7.0]);
                let weighed = simd.mul_f32s(*weight, number);
                sums[0] = simd.mul_add_f32s(weighed, number, sums[0]);
                sums[1] = simd.mul_add_f32s(weighed, *value, sums[1]);
            }
            let [squares, products] = reduce_sums(simd, sums);
            // Reduction of the squared error, relative to all numbers being 0.
            let reduction = products * products / squares;
            if reduction > best.0 {
                best = (reduction, (products / squares) as f32);
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns irregular values in [-1, 1].
    fn values(seed: f32) -> [f32; COLUMNS] {
        std::array::from_fn(|i| {
            ((i as f32 + seed) * 1.618).sin() * ((i as f32 + seed) * 0.77).cos()
        })
    }

    fn range(values: &[f32; COLUMNS]) -> [f32; 2] {
        let ends = |f: fn(f32, f32) -> f32, start| values.iter().copied().fold(start, f);
        [ends(f32::min, f32::INFINITY), ends(f32::max, f32::NEG_INFINITY)]
    }

    fn error(
        values: &[f32; COLUMNS],
        weights: &[f32; COLUMNS],
        rounded: impl Fn(f32) -> f32,
    ) -> f32 {
        values.iter().zip(weights).map(|(v, w)| w * (rounded(*v) - v).powi(2)).sum()
    }

    fn on_line(scale: f32, min: f32) -> impl Fn(f32) -> f32 {
        move |v| ((v - min) / scale).round().clamp(0.0, 15.0) * scale + min
    }

    fn symmetric(scale: f32) -> impl Fn(f32) -> f32 {
        move |v| (v / scale).round().clamp(-8.0, 7.0) * scale
    }

    #[test]
    fn search_reduces_weighted_error() {
        let (mut before, mut after) = ([0.0; 2], [0.0; 2]);
        for seed in 0..50 {
            let values = values(seed as f32);
            // A few columns have most of the weight.
            let weights = std::array::from_fn(|i| if (i + seed) % 8 == 0 { 20.0 } else { 0.1 });
            let [min, max] = range(&values);
            let [scale_found, minimum] = fit_line(&values, &weights, [min, max], 15.0);
            before[0] += error(&values, &weights, on_line((max - min) / 15.0, min));
            after[0] += error(&values, &weights, on_line(scale_found, minimum));
            let largest = if -min > max { min } else { max };
            before[1] += error(&values, &weights, symmetric(largest / -8.0));
            after[1] += error(&values, &weights, symmetric(fit_scale(&values, &weights, largest)));
        }
        assert!(after[0] < 0.6 * before[0] && after[1] < 0.75 * before[1], "{before:?}, {after:?}");
    }

    #[test]
    fn values_on_a_grid_keep_scale_and_minimum() {
        for seed in 0..50 {
            let number = |i: usize| ((i * 7 + seed) % 16) as f32;
            let on_grid: [f32; COLUMNS] = std::array::from_fn(|i| 0.125 * number(i) - 0.75);
            let weights = std::array::from_fn(|i| 1.0 + (i % 5) as f32);
            let [scale, min] = fit_line(&on_grid, &weights, range(&on_grid), 15.0);
            assert!((scale - 0.125).abs() < 1e-6 && (min + 0.75).abs() < 1e-5, "{scale} {min}");
        }
    }

    #[test]
    fn constant_values_and_nan_weights_keep_unsearched_scale() {
        let even = [1.0; COLUMNS];
        assert_eq!(fit_line(&[3.0; COLUMNS], &even, [3.0, 3.0], 15.0), [0.0, 3.0]);
        assert_eq!(fit_scale(&[0.0; COLUMNS], &even, 0.0), 0.0 / -8.0);
        let values = values(1.0);
        let [min, max] = range(&values);
        for none in [[0.0; COLUMNS], [f32::NAN; COLUMNS]] {
            assert_eq!(fit_line(&values, &none, [min, max], 15.0), [(max - min) / 15.0, min]);
            assert_eq!(fit_scale(&values, &none, max), max / -8.0);
        }
    }
}
