//! Rounding to ggml's Q4_K: blocks of 256 columns in eight sub-blocks of 32, with the scales and
//! minima of sub-blocks stored as 6-bit multiples of a block scale and a block minimum.
//!
//! Source: ggml's `quantize_row_q4_K_ref` with `make_qkx1_quants`; with weights of columns,
//! `quantize_row_q4_K_impl` with `make_qkx3_quants` and `make_qp_quants` (Kawrakow 2023). Sums are
//! in the same order as in candle 0.11, and a test compares the resulting bits.
//! Method:
//! 1. Search the scale and minimum of each sub-block ([`fit_line`], [`fit_line_weighted`]).
//! 2. Round the scales to 6-bit multiples of the largest one, or with weights, to the multiples
//!    with the least error ([`round_scales`]); minima likewise.
//! 3. Round the numbers with the rounded scales and minima.
//!
//! Complexity: six passes over the numbers; 38 with weights.

use half::f16;

use crate::packed::block::COLUMNS;

/// Number of sub-blocks of a block.
const SUB_BLOCKS: usize = 8;
/// Largest number of a block.
const MAX_NUMBER: i32 = 15;
/// Largest 6-bit scale of a sub-block.
const MAX_SUB_SCALE: u8 = 63;
/// Maximum number of iterations of the searches.
const MAX_ITERATIONS: usize = 5;
/// Widths of the grid that the weighted search tries, in steps beyond the range of the values:
/// number of widths, first width, increment.
const GRIDS: (usize, f32, f32) = (37, -0.9, 0.05);

/// One row of a block.
pub(super) struct Rounded {
    pub scale: f16,
    /// Block minimum, which is subtracted.
    pub minimum: f16,
    /// Multiples of the scale, and of the minimum, by sub-block.
    pub sub_scales: [[u8; SUB_BLOCKS]; 2],
    pub numbers: [u8; SUB_BLOCKS * COLUMNS],
}

/// Rounds a row's numbers. `weights`, if given, are the weights of squared errors by column.
pub(super) fn rounded(
    values: &[f32; SUB_BLOCKS * COLUMNS],
    weights: Option<&[f32; SUB_BLOCKS * COLUMNS]>,
) -> Rounded {
    let sub_blocks = values.as_chunks::<COLUMNS>().0;
    let ([scale, minimum], sub_scales) = match weights {
        None => unweighted(sub_blocks),
        Some(weights) => weighted(values, sub_blocks, weights.as_chunks::<COLUMNS>().0),
    };
    let [scale, minimum] = [scale, minimum].map(f16::from_f32);
    let mut numbers = [0; SUB_BLOCKS * COLUMNS];
    for (sub_block, (values, numbers)) in
        sub_blocks.iter().zip(numbers.as_chunks_mut::<COLUMNS>().0).enumerate()
    {
        let scale = scale.to_f32() * f32::from(sub_scales[0][sub_block]);
        if scale != 0.0 {
            let minimum = minimum.to_f32() * f32::from(sub_scales[1][sub_block]);
            for (number, value) in numbers.iter_mut().zip(values) {
                *number = nearest((value + minimum) / scale).clamp(0, MAX_NUMBER) as u8;
            }
        }
    }
    Rounded { scale, minimum, sub_scales, numbers }
}

fn nearest(value: f32) -> i32 {
    value.round() as i32
}

/// Block scale and minimum, and their multiples by sub-block.
type Scales = ([f32; 2], [[u8; SUB_BLOCKS]; 2]);

/// Searches scales with equal weights for all columns.
fn unweighted(sub_blocks: &[[f32; COLUMNS]]) -> Scales {
    let mut lines = [[0.0; SUB_BLOCKS]; 2];
    for (sub_block, values) in sub_blocks.iter().enumerate() {
        [lines[0][sub_block], lines[1][sub_block]] = fit_line(values);
    }
    let largest = lines.map(|values| values.iter().fold(0.0, |max: f32, value| value.max(max)));
    let mut sub_scales = [[0; SUB_BLOCKS]; 2];
    for ((sub_scales, values), largest) in sub_scales.iter_mut().zip(lines).zip(largest) {
        let inverse = if largest > 0.0 { f32::from(MAX_SUB_SCALE) / largest } else { 0.0 };
        for (sub_scale, value) in sub_scales.iter_mut().zip(values) {
            *sub_scale =
                nearest(inverse * value).min(i32::from(MAX_SUB_SCALE)) as u8 & MAX_SUB_SCALE;
        }
    }
    (largest.map(|largest| largest / f32::from(MAX_SUB_SCALE)), sub_scales)
}

/// Returns the scale, and the minimum to subtract, of numbers from 0 to [`MAX_NUMBER`]. Alternates
/// between rounding to the grid and the best scale, then minimum, for the rounded numbers.
fn fit_line(values: &[f32; COLUMNS]) -> [f32; 2] {
    let min = values.iter().copied().min_by(f32::total_cmp).unwrap_or(0.0);
    let max = values.iter().copied().max_by(f32::total_cmp).unwrap_or(0.0);
    if max == min {
        return [0.0, 0.0];
    }
    let mut min = min.min(0.0);
    let mut inverse = MAX_NUMBER as f32 / (max - min);
    let mut scale = 1.0 / inverse;
    let mut numbers = [0; COLUMNS];
    for _ in 0..MAX_ITERATIONS {
        let (mut products, mut squares, mut changed) = (0.0, 0, false);
        for (number, value) in numbers.iter_mut().zip(values) {
            let new = nearest(inverse * (value - min)).clamp(0, MAX_NUMBER);
            changed |= new != *number;
            *number = new;
            products += (value - min) * new as f32;
            squares += new * new;
        }
        scale = products / squares as f32;
        let rest: f32 = values.iter().zip(&numbers).map(|(v, n)| v - scale * *n as f32).sum();
        min = rest / COLUMNS as f32;
        if min > 0.0 {
            min = 0.0;
        }
        inverse = 1.0 / scale;
        if !changed {
            break;
        }
    }
    [scale, -min]
}

/// Searches scales with weights of columns, each multiplied by a factor that grows with the size of
/// the column's value relative to the block.
fn weighted(
    values: &[f32; SUB_BLOCKS * COLUMNS],
    sub_blocks: &[[f32; COLUMNS]],
    columns: &[[f32; COLUMNS]],
) -> Scales {
    let squares = values.iter().map(|value| value * value).sum::<f32>();
    let mean = 2.0 * squares / values.len() as f32;
    let (mut lines, mut sums) = ([[0.0; SUB_BLOCKS]; 2], [0.0; SUB_BLOCKS]);
    for (sub_block, (values, columns)) in sub_blocks.iter().zip(columns).enumerate() {
        let mut weights = [0.0; COLUMNS];
        for ((weight, value), column) in weights.iter_mut().zip(values).zip(columns) {
            *weight = column * (mean + value * value).sqrt();
        }
        sums[sub_block] = weights.iter().sum();
        [lines[0][sub_block], lines[1][sub_block]] = fit_line_weighted(values, &weights);
    }
    let [(scale, scales), (minimum, minima)] = lines.map(|values| round_scales(&values, &sums));
    ([scale, minimum], [scales, minima])
}

/// Returns a scale and a minimum like [`fit_line`], but tries several widths of the grid. For each,
/// the numbers are rounded, and scale and minimum are fitted to them by weighted least squares. The
/// fit with the least error is returned.
fn fit_line_weighted(values: &[f32; COLUMNS], weights: &[f32; COLUMNS]) -> [f32; 2] {
    let (mut min, mut max) = (values[0], values[0]);
    let mut all = weights[0];
    let mut first = all * values[0];
    for (value, weight) in values.iter().zip(weights).skip(1) {
        min = if *value < min { *value } else { min };
        max = if *value > max { *value } else { max };
        all += weight;
        first += weight * value;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max <= min {
        return [0.0, -min];
    }
    let error_of = |numbers: &[u8; COLUMNS], scale: f32, min: f32| {
        let mut error = 0.0;
        for ((value, weight), number) in values.iter().zip(weights).zip(numbers) {
            let off = scale * f32::from(*number) + min - value;
            error += weight * (off * off);
        }
        error
    };
    let on_grid = |inverse: f32, min: f32| {
        let mut numbers = [0; COLUMNS];
        for (number, value) in numbers.iter_mut().zip(values) {
            *number = nearest(inverse * (value - min)).clamp(0, MAX_NUMBER) as u8;
        }
        numbers
    };
    let inverse = MAX_NUMBER as f32 / (max - min);
    let mut best = [1.0 / inverse, min];
    let mut least_error = error_of(&on_grid(inverse, min), best[0], best[1]);
    let (count, start, step) = GRIDS;
    for grid in 0..count {
        // The grid starts at the best minimum so far.
        let inverse = (start + step * grid as f32 + MAX_NUMBER as f32) / (max - best[1]);
        let numbers = on_grid(inverse, best[1]);
        let (mut sum, mut squares, mut products) = (0.0, 0.0, 0.0);
        for ((value, weight), number) in values.iter().zip(weights).zip(&numbers) {
            let number = f32::from(*number);
            sum += weight * number;
            squares += weight * (number * number);
            products += weight * number * value;
        }
        let determinant = all * squares - sum * sum;
        if determinant > 0.0 {
            let mut scale = (all * products - first * sum) / determinant;
            let mut min = (squares * first - sum * products) / determinant;
            if min > 0.0 {
                min = 0.0;
                scale = products / squares;
            }
            let error = error_of(&numbers, scale, min);
            if error < least_error {
                (least_error, best) = (error, [scale, min]);
            }
        }
    }
    [best[0], -best[1]]
}

/// Approximates non-negative values by multiples from 0 to [`MAX_SUB_SCALE`] of one scale; returns
/// the scale and the multiples.
fn round_scales(
    values: &[f32; SUB_BLOCKS],
    weights: &[f32; SUB_BLOCKS],
) -> (f32, [u8; SUB_BLOCKS]) {
    let max = values.iter().copied().fold(0.0, f32::max);
    if max == 0.0 {
        return (0.0, [0; SUB_BLOCKS]);
    }
    let error_of = |inverse: f32, last: u8| {
        let scale = 1.0 / inverse;
        let off = |(value, weight): (&f32, &f32)| {
            let multiple = (nearest(inverse * value) as u8).min(last);
            let off = value - scale * f32::from(multiple);
            weight * off * off
        };
        values.iter().zip(weights).map(off).sum::<f32>()
    };
    let mut inverse = f32::from(MAX_SUB_SCALE) / max;
    let mut least_error = error_of(inverse, u8::MAX);
    for wider in (-4..=4).filter(|wider| *wider != 0) {
        let other = (0.1 * wider as f32 + f32::from(MAX_SUB_SCALE)) / max;
        let error = error_of(other, MAX_SUB_SCALE);
        if error < least_error {
            (least_error, inverse) = (error, other);
        }
    }
    let mut multiples = [0; SUB_BLOCKS];
    let (mut products, mut squares) = (0.0, 0.0);
    for ((multiple, value), weight) in multiples.iter_mut().zip(values).zip(weights) {
        *multiple = ((inverse * value).round() as u8).min(MAX_SUB_SCALE);
        let size = f32::from(*multiple);
        products += weight * value * size;
        squares += weight * (size * size);
    }
    // Move each multiple to its optimum for the scale that the others determine, until none
    // changes.
    for _ in 0..MAX_ITERATIONS {
        let mut changed = false;
        for ((multiple, value), weight) in multiples.iter_mut().zip(values).zip(weights) {
            let size = f32::from(*multiple);
            let mut new_products = products - weight * value * size;
            let mut new_squares = squares - weight * (size * size);
            if new_products > 0.0 && new_squares > 0.0 {
                let new = (nearest(value * new_squares / new_products) as u8).min(MAX_SUB_SCALE);
                if new != *multiple {
                    let size = f32::from(new);
                    new_products += weight * value * size;
                    new_squares += weight * (size * size);
                    if new_products * new_products * squares > products * products * new_squares {
                        (*multiple, products, squares, changed) =
                            (new, new_products, new_squares, true);
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    (products / squares, multiples)
}
