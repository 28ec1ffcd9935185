//! Scales and minima with which a block's rounded numbers are nearest to its weights, errors
//! weighed by column.
//!
//! Source: ggml's `make_qkx2_quants` and `make_qx_quants` (Kawrakow 2023): for some widths of the
//! grid the integers are taken, and for these integers the scale (and minimum) of least squares.
//! Complexity: [`WIDER`] times the block's numbers. Deviations:
//! 1. Weights are the importance of the columns alone, not times a number's size.
//! 2. The range as it is goes first and is left only for less error, so that weights which lie on a
//!    grid stay there.

use pulp::{Arch, Simd, WithSimd};

use crate::packed::block::COLUMNS;
use crate::packed::round::ROUND;

/// By how many steps the grid is wider than the range, or narrower: then the ends are cut.
const WIDER: [f32; 12] = [0.0, -1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0];
/// What a block's largest number, with its sign, becomes; −8 first, as it is without a search.
const ENDS: [f32; 12] = [-8.0, -9.5, -9.0, -8.5, -7.5, -7.0, -6.5, -6.0, 9.0, 8.0, 7.5, 7.0];

/// Scale and minimum of numbers from 0 to `top`, for values in `range`.
pub(super) fn line(
    values: &[f32; COLUMNS],
    weights: &[f32; COLUMNS],
    range: [f32; 2],
    top: f32,
) -> [f32; 2] {
    Arch::new().dispatch(Line { values, weights, range, top })
}

/// Scale of numbers from −8 to 7, where `largest` is the value of the largest size.
pub(super) fn scale(values: &[f32; COLUMNS], weights: &[f32; COLUMNS], largest: f32) -> f32 {
    Arch::new().dispatch(Scale { values, weights, largest })
}

// In vectors by name, and loops where closures would be shorter. Of plain loops over blocks of a
// length that is known the compiler makes one long piece without vectors; a closure is a function
// of its own, which it does not give the CPU's vectors.

/// The nearest whole numbers within these ends.
#[inline(always)]
fn whole<S: Simd>(simd: S, x: S::f32s, ends: [f32; 2]) -> S::f32s {
    let round = simd.splat_f32s(ROUND);
    let within =
        simd.min_f32s(simd.max_f32s(x, simd.splat_f32s(ends[0])), simd.splat_f32s(ends[1]));
    simd.sub_f32s(simd.add_f32s(within, round), round)
}

/// Sums across vectors.
#[inline(always)]
fn totals<S: Simd, const N: usize>(simd: S, sums: [S::f32s; N]) -> [f64; N] {
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
        let Self { range: [least, most], top, .. } = self;
        let (values, weights) = (S::as_simd_f32s(self.values).0, S::as_simd_f32s(self.weights).0);
        let (zero, lowest) = (simd.splat_f32s(0.0), simd.splat_f32s(least));
        let mut sums = [zero; 3];
        for (value, weight) in values.iter().zip(weights) {
            let above = simd.sub_f32s(*value, lowest);
            let weighed = simd.mul_f32s(*weight, above);
            sums[0] = simd.add_f32s(*weight, sums[0]);
            sums[1] = simd.add_f32s(weighed, sums[1]);
            sums[2] = simd.mul_add_f32s(weighed, above, sums[2]);
        }
        let [all, first, second] = totals(simd, sums);
        let mut best = (f64::INFINITY, [(most - least) / top, least]);
        for wider in WIDER {
            let factor = simd.splat_f32s((top + wider) / (most - least));
            let mut sums = [zero; 3];
            for (value, weight) in values.iter().zip(weights) {
                let above = simd.sub_f32s(*value, lowest);
                let number = whole(simd, simd.mul_f32s(above, factor), [0.0, top]);
                let weighed = simd.mul_f32s(*weight, number);
                sums[0] = simd.add_f32s(weighed, sums[0]);
                sums[1] = simd.mul_add_f32s(weighed, number, sums[1]);
                sums[2] = simd.mul_add_f32s(weighed, above, sums[2]);
            }
            let [of, squares, with] = totals(simd, sums);
            let determinant = all * squares - of * of;
            let scale = (all * with - of * first) / determinant;
            let minimum = (squares * first - of * with) / determinant;
            let error = second
                + scale * scale * squares
                + minimum * minimum * all
                + 2.0 * scale * minimum * of
                - 2.0 * scale * with
                - 2.0 * minimum * first;
            // Not where nothing is to be found: of one number only, or of weights that are no
            // numbers.
            if error < best.0 {
                best = (error, [scale as f32, minimum as f32 + least]);
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
                let number = whole(simd, simd.mul_f32s(*value, factor), [-8.0, 7.0]);
                let weighed = simd.mul_f32s(*weight, number);
                sums[0] = simd.mul_add_f32s(weighed, number, sums[0]);
                sums[1] = simd.mul_add_f32s(weighed, *value, sums[1]);
            }
            let [squares, with] = totals(simd, sums);
            // What this takes of the error of no numbers at all.
            let taken = with * with / squares;
            if taken > best.0 {
                best = (taken, (with / squares) as f32);
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Like weights: sums of sines, in [-1, 1].
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

    fn on_line(scale: f32, least: f32) -> impl Fn(f32) -> f32 {
        move |v| ((v - least) / scale).round().clamp(0.0, 15.0) * scale + least
    }

    fn symmetric(scale: f32) -> impl Fn(f32) -> f32 {
        move |v| (v / scale).round().clamp(-8.0, 7.0) * scale
    }

    #[test]
    fn errors_that_count_become_smaller() {
        let (mut before, mut after) = ([0.0; 2], [0.0; 2]);
        for seed in 0..50 {
            let values = values(seed as f32);
            // A few columns count for most.
            let weights = std::array::from_fn(|i| if (i + seed) % 8 == 0 { 20.0 } else { 0.1 });
            let [least, most] = range(&values);
            let [scale_found, minimum] = line(&values, &weights, [least, most], 15.0);
            before[0] += error(&values, &weights, on_line((most - least) / 15.0, least));
            after[0] += error(&values, &weights, on_line(scale_found, minimum));
            let largest = if -least > most { least } else { most };
            before[1] += error(&values, &weights, symmetric(largest / -8.0));
            after[1] += error(&values, &weights, symmetric(scale(&values, &weights, largest)));
        }
        assert!(after[0] < 0.6 * before[0] && after[1] < 0.75 * before[1], "{before:?}, {after:?}");
    }

    /// Weights of a 4-bit file are found again, to the bits of f32.
    #[test]
    fn what_lies_on_a_grid_stays_there() {
        for seed in 0..50 {
            let number = |i: usize| ((i * 7 + seed) % 16) as f32;
            let on_grid: [f32; COLUMNS] = std::array::from_fn(|i| 0.125 * number(i) - 0.75);
            let weights = std::array::from_fn(|i| 1.0 + (i % 5) as f32);
            let [scale, least] = line(&on_grid, &weights, range(&on_grid), 15.0);
            assert!((scale - 0.125).abs() < 1e-6 && (least + 0.75).abs() < 1e-5, "{scale} {least}");
        }
    }

    /// Blocks of one number, of zeros, of weights that are no numbers: as they come.
    #[test]
    fn where_nothing_is_to_be_found_nothing_is_changed() {
        let even = [1.0; COLUMNS];
        assert_eq!(line(&[3.0; COLUMNS], &even, [3.0, 3.0], 15.0), [0.0, 3.0]);
        assert_eq!(scale(&[0.0; COLUMNS], &even, 0.0), 0.0 / -8.0);
        let values = values(1.0);
        let [least, most] = range(&values);
        for none in [[0.0; COLUMNS], [f32::NAN; COLUMNS]] {
            assert_eq!(line(&values, &none, [least, most], 15.0), [(most - least) / 15.0, least]);
            assert_eq!(scale(&values, &none, most), most / -8.0);
        }
    }
}
