//! Rounding to ggml's Q4_K: 256 columns in parts of 32, the scales and minima of the parts in steps
//! of 6 bits.
//!
//! Source: ggml's `quantize_row_q4_K_ref` with `make_qkx1_quants`, and where it is known how much
//! an error in each column counts `quantize_row_q4_K_impl` with `make_qkx3_quants` and
//! `make_qp_quants` (Kawrakow 2023); the same sums in the same order as candle 0.11 has them, whose
//! bits a test compares.
//! Method:
//! 1. Each part's scale and minimum are searched for ([`line`], [`weighed_line`]).
//! 2. They are rounded to steps of the largest ones, or to steps that lose least ([`steps`]).
//! 3. Numbers are rounded to what the steps then say.
//!
//! Complexity: six passes over the numbers; with weights 38.

use half::f16;

use crate::packed::block::COLUMNS;

/// Parts of a block.
const PARTS: usize = 8;
/// The largest number.
const MOST: i32 = 15;
/// The largest step.
const LAST: u8 = 63;
/// Passes of the search without weights, at most.
const TURNS: usize = 5;
/// Widths of the grid that are tried with weights: how many, by how much it is wider than the range
/// at first, and by how much more each time.
const GRIDS: (usize, f32, f32) = (37, -0.9, 0.05);

/// A row of a block.
pub(super) struct Rounded {
    pub scale: f16,
    /// To be subtracted.
    pub minimum: f16,
    /// Of the scale, and of the minimum.
    pub steps: [[u8; PARTS]; 2],
    pub numbers: [u8; PARTS * COLUMNS],
}

/// Rounds a row's numbers; errors count by column as `weights` say, if they are given.
pub(super) fn rounded(
    values: &[f32; PARTS * COLUMNS],
    weights: Option<&[f32; PARTS * COLUMNS]>,
) -> Rounded {
    let parts = values.as_chunks::<COLUMNS>().0;
    let ([scale, minimum], steps) = match weights {
        None => plain(parts),
        Some(weights) => weighed(values, parts, weights.as_chunks::<COLUMNS>().0),
    };
    let [scale, minimum] = [scale, minimum].map(f16::from_f32);
    let mut numbers = [0; PARTS * COLUMNS];
    for (part, (values, numbers)) in
        parts.iter().zip(numbers.as_chunks_mut::<COLUMNS>().0).enumerate()
    {
        let own = scale.to_f32() * f32::from(steps[0][part]);
        if own != 0.0 {
            let minimum = minimum.to_f32() * f32::from(steps[1][part]);
            for (number, value) in numbers.iter_mut().zip(values) {
                *number = nearest((value + minimum) / own).clamp(0, MOST) as u8;
            }
        }
    }
    Rounded { scale, minimum, steps, numbers }
}

fn nearest(value: f32) -> i32 {
    value.round() as i32
}

type Found = ([f32; 2], [[u8; PARTS]; 2]);

/// Every column counts the same.
fn plain(parts: &[[f32; COLUMNS]]) -> Found {
    let mut lines = [[0.0; PARTS]; 2];
    for (part, values) in parts.iter().enumerate() {
        [lines[0][part], lines[1][part]] = line(values);
    }
    let largest = lines.map(|of| of.iter().fold(0.0, |most: f32, value| value.max(most)));
    let mut steps = [[0; PARTS]; 2];
    for ((steps, values), largest) in steps.iter_mut().zip(lines).zip(largest) {
        let inverse = if largest > 0.0 { f32::from(LAST) / largest } else { 0.0 };
        for (step, value) in steps.iter_mut().zip(values) {
            *step = nearest(inverse * value).min(i32::from(LAST)) as u8 & LAST;
        }
    }
    (largest.map(|largest| largest / f32::from(LAST)), steps)
}

/// Scale and minimum, to be subtracted, of numbers from 0 to [`MOST`]: the integers of the grid so
/// far, the scale that suits them best, the minimum that then does, and so on.
fn line(values: &[f32; COLUMNS]) -> [f32; 2] {
    let least = values.iter().copied().min_by(f32::total_cmp).unwrap_or(0.0);
    let most = values.iter().copied().max_by(f32::total_cmp).unwrap_or(0.0);
    if most == least {
        return [0.0, 0.0];
    }
    let mut least = least.min(0.0);
    let mut inverse = MOST as f32 / (most - least);
    let mut scale = 1.0 / inverse;
    let mut numbers = [0; COLUMNS];
    for _ in 0..TURNS {
        let (mut with, mut squares, mut changed) = (0.0, 0, false);
        for (number, value) in numbers.iter_mut().zip(values) {
            let new = nearest(inverse * (value - least)).clamp(0, MOST);
            changed |= new != *number;
            *number = new;
            with += (value - least) * new as f32;
            squares += new * new;
        }
        scale = with / squares as f32;
        let rest: f32 = values.iter().zip(&numbers).map(|(v, n)| v - scale * *n as f32).sum();
        least = rest / COLUMNS as f32;
        if least > 0.0 {
            least = 0.0;
        }
        inverse = 1.0 / scale;
        if !changed {
            break;
        }
    }
    [scale, -least]
}

/// A column counts the more, the larger its number is beside the others of the block.
fn weighed(
    values: &[f32; PARTS * COLUMNS],
    parts: &[[f32; COLUMNS]],
    columns: &[[f32; COLUMNS]],
) -> Found {
    let squares = values.iter().map(|value| value * value).sum::<f32>();
    let mean = 2.0 * squares / values.len() as f32;
    let (mut lines, mut sums) = ([[0.0; PARTS]; 2], [0.0; PARTS]);
    for (part, (values, columns)) in parts.iter().zip(columns).enumerate() {
        let mut weights = [0.0; COLUMNS];
        for ((weight, value), column) in weights.iter_mut().zip(values).zip(columns) {
            *weight = column * (mean + value * value).sqrt();
        }
        sums[part] = weights.iter().sum();
        [lines[0][part], lines[1][part]] = weighed_line(values, &weights);
    }
    let [(scale, scales), (minimum, minima)] = lines.map(|of| steps(&of, &sums));
    ([scale, minimum], [scales, minima])
}

/// As [`line`]: of some widths of the grid the one whose scale and minimum of least squares lose
/// least.
fn weighed_line(values: &[f32; COLUMNS], weights: &[f32; COLUMNS]) -> [f32; 2] {
    let (mut least, mut most) = (values[0], values[0]);
    let mut all = weights[0];
    let mut first = all * values[0];
    for (value, weight) in values.iter().zip(weights).skip(1) {
        least = if *value < least { *value } else { least };
        most = if *value > most { *value } else { most };
        all += weight;
        first += weight * value;
    }
    if least > 0.0 {
        least = 0.0;
    }
    if most <= least {
        return [0.0, -least];
    }
    let lost = |numbers: &[u8; COLUMNS], scale: f32, least: f32| {
        let mut lost = 0.0;
        for ((value, weight), number) in values.iter().zip(weights).zip(numbers) {
            let off = scale * f32::from(*number) + least - value;
            lost += weight * (off * off);
        }
        lost
    };
    let on_grid = |inverse: f32, least: f32| {
        let mut numbers = [0; COLUMNS];
        for (number, value) in numbers.iter_mut().zip(values) {
            *number = nearest(inverse * (value - least)).clamp(0, MOST) as u8;
        }
        numbers
    };
    let inverse = MOST as f32 / (most - least);
    let mut best = [1.0 / inverse, least];
    let mut fewest = lost(&on_grid(inverse, least), best[0], best[1]);
    let (count, start, step) = GRIDS;
    for grid in 0..count {
        // The grid begins where the best one so far does.
        let inverse = (start + step * grid as f32 + MOST as f32) / (most - best[1]);
        let numbers = on_grid(inverse, best[1]);
        let (mut of, mut squares, mut with) = (0.0, 0.0, 0.0);
        for ((value, weight), number) in values.iter().zip(weights).zip(&numbers) {
            let number = f32::from(*number);
            of += weight * number;
            squares += weight * (number * number);
            with += weight * number * value;
        }
        let determinant = all * squares - of * of;
        if determinant > 0.0 {
            let mut scale = (all * with - first * of) / determinant;
            let mut least = (squares * first - of * with) / determinant;
            if least > 0.0 {
                least = 0.0;
                scale = with / squares;
            }
            let error = lost(&numbers, scale, least);
            if error < fewest {
                (fewest, best) = (error, [scale, least]);
            }
        }
    }
    [best[0], -best[1]]
}

/// A scale, and steps from 0 to [`LAST`] of it, for what is not below zero.
fn steps(values: &[f32; PARTS], weights: &[f32; PARTS]) -> (f32, [u8; PARTS]) {
    let most = values.iter().copied().fold(0.0, f32::max);
    if most == 0.0 {
        return (0.0, [0; PARTS]);
    }
    let lost = |inverse: f32, last: u8| {
        let scale = 1.0 / inverse;
        let off = |(value, weight): (&f32, &f32)| {
            let step = (nearest(inverse * value) as u8).min(last);
            let off = value - scale * f32::from(step);
            weight * off * off
        };
        values.iter().zip(weights).map(off).sum::<f32>()
    };
    let mut inverse = f32::from(LAST) / most;
    let mut fewest = lost(inverse, u8::MAX);
    for wider in (-4..=4).filter(|wider| *wider != 0) {
        let other = (0.1 * wider as f32 + f32::from(LAST)) / most;
        let error = lost(other, LAST);
        if error < fewest {
            (fewest, inverse) = (error, other);
        }
    }
    let mut steps = [0; PARTS];
    let (mut with, mut squares) = (0.0, 0.0);
    for ((step, value), weight) in steps.iter_mut().zip(values).zip(weights) {
        *step = ((inverse * value).round() as u8).min(LAST);
        let size = f32::from(*step);
        with += weight * value * size;
        squares += weight * (size * size);
    }
    // One after the other to where it suits the scale of the others.
    for _ in 0..TURNS {
        let mut changed = false;
        for ((step, value), weight) in steps.iter_mut().zip(values).zip(weights) {
            let size = f32::from(*step);
            let mut own_with = with - weight * value * size;
            let mut own_squares = squares - weight * (size * size);
            if own_with > 0.0 && own_squares > 0.0 {
                let new = (nearest(value * own_squares / own_with) as u8).min(LAST);
                if new != *step {
                    let size = f32::from(new);
                    own_with += weight * value * size;
                    own_squares += weight * (size * size);
                    if own_with * own_with * squares > with * with * own_squares {
                        (*step, with, squares, changed) = (new, own_with, own_squares, true);
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    (with / squares, steps)
}
