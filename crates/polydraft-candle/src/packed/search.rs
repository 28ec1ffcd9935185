//! Scales and minima with which a block's rounded numbers are nearest to its weights, errors weighed by column.
//!
//! Source: ggml's `make_qkx2_quants` and `make_qx_quants` (Kawrakow 2023): for some widths of the grid the integers are taken, and
//! for these integers the scale (and minimum) of least squares.
//! Complexity: [`WIDER`] times the block's numbers. Deviations:
//! 1. Weights are the importance of the columns alone, not times a number's size.
//! 2. The range as it is goes first and is left only for less error, so that weights which lie on a grid stay there.

use super::blocks::COLUMNS;

/// By how many steps the grid is wider than the range, or narrower: then the ends are cut.
const WIDER: [f32; 12] = [0.0, -1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0];
/// What a block's largest number, with its sign, becomes; −8 first, as it is without a search.
const ENDS: [f32; 12] = [-8.0, -9.5, -9.0, -8.5, -7.5, -7.0, -6.5, -6.0, 9.0, 8.0, 7.5, 7.0];

/// Numbers that are added up beside each other.
const LANES: usize = 16;

/// Σ over the columns of what `of` makes of a column, N sums at once, in lanes, which the compiler turns into vectors.
#[inline(always)]
fn sums<const N: usize>(of: impl Fn(usize) -> [f32; N]) -> [f64; N] {
    let mut lanes = [[0f32; LANES]; N];
    for first in (0..COLUMNS).step_by(LANES) {
        for lane in 0..LANES {
            let found = of(first + lane);
            for n in 0..N {
                lanes[n][lane] += found[n];
            }
        }
    }
    lanes.map(|lanes| f64::from(lanes.iter().sum::<f32>()))
}

/// Scale and minimum of numbers from 0 to `top`, for values in `range`.
#[inline(always)]
pub(super) fn line(
    values: &[f32; COLUMNS],
    weights: &[f32; COLUMNS],
    range: [f32; 2],
    top: f32,
) -> [f32; 2] {
    let [least, most] = range;
    let plain = [(most - least) / top, least];
    let [all, first, second] = sums(|i| {
        let above = values[i] - least;
        [weights[i], weights[i] * above, weights[i] * above * above]
    });
    let mut best = (f64::INFINITY, plain);
    for wider in WIDER {
        let inverse = (top + wider) / (most - least);
        let [of, squares, with] = sums(|i| {
            let above = values[i] - least;
            let number = (above * inverse + 0.5).clamp(0.0, top).floor();
            [weights[i] * number, weights[i] * number * number, weights[i] * number * above]
        });
        let determinant = all * squares - of * of;
        let scale = (all * with - of * first) / determinant;
        let minimum = (squares * first - of * with) / determinant;
        let error = second + scale * scale * squares + minimum * minimum * all + 2.0 * scale * minimum * of
            - 2.0 * scale * with
            - 2.0 * minimum * first;
        // Not where nothing is to be found: of one number only, or of weights that are no numbers.
        if error < best.0 {
            best = (error, [scale as f32, minimum as f32 + least]);
        }
    }
    best.1
}

/// Scale of numbers from −8 to 7, where `largest` is the value of the largest size.
#[inline(always)]
pub(super) fn scale(values: &[f32; COLUMNS], weights: &[f32; COLUMNS], largest: f32) -> f32 {
    let mut best = (0.0, largest / ENDS[0]);
    for end in ENDS {
        let inverse = end / largest;
        let [squares, with] = sums(|i| {
            let number = (values[i] * inverse + 8.5).clamp(0.0, 15.0).floor() - 8.0;
            [weights[i] * number * number, weights[i] * number * values[i]]
        });
        // What this takes of the error of no numbers at all.
        let taken = with * with / squares;
        if taken > best.0 {
            best = (taken, (with / squares) as f32);
        }
    }
    best.1
}
