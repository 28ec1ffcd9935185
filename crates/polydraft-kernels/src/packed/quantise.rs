//! Rounding of weights to quantized blocks, as in ggml's reference; or, with weights for the errors
//! of columns, with searched scales ([`search`]).
//!
//! Source: ggml's `quantize_row_q8_0_ref`, `_q4_0_ref`, `_q4_1_ref` and `_q5_1_ref`, bitwise the
//! same if f16 can represent the scale. A scale beyond f16's range is clamped to the largest f16,
//! and numbers are then clamped to the range of the block.

mod q4_k;
mod search;

use half::f16;

use super::block::{COLUMNS, put_words};
use super::blocks::{Q4_0, Q4_1, Q4K, Q8_0};
use super::planes::Q5_1;
use super::read::ReadRows;
use super::round::{ROUND, largest};
use super::tiles::Encode;

/// Weights of squared errors, by column.
type Weights<'a, const N: usize> = Option<&'a [f32; N]>;

/// Number of independent lanes of minima and maxima.
const LANES: usize = 16;

/// Returns a scale rounded to f16, and the factor that numbers are multiplied by.
#[inline(always)]
fn scale(exact: f32) -> (u16, f32) {
    let max = f16::MAX.to_f32();
    let scale = exact.clamp(-max, max);
    (f16::from_f32(scale).to_bits(), if scale != 0.0 { 1.0 / scale } else { 0.0 })
}

#[inline(always)]
fn q8_0(block: &mut Q8_0, row: usize, values: &[f32; COLUMNS], _weights: Weights<COLUMNS>) {
    let (half, inverse) = scale(largest(values) / 127.0);
    block.scales[row] = half;
    let mut bytes = [0; COLUMNS];
    for (byte, value) in bytes.iter_mut().zip(values) {
        let number = (value * inverse).round().clamp(-127.0, 127.0);
        *byte = (number + ROUND).to_bits() as u8;
    }
    put_words(&mut block.numbers, row, &bytes);
}

/// Truncates to an integer from 0 to `top`.
#[inline(always)]
fn truncate(value: f32, top: u8) -> u8 {
    // Only rounding errors are below 0; the clamp removes them.
    value.clamp(0.0, f32::from(top)) as i32 as u8
}

/// Packs pairs of 4-bit numbers: column i in the low nibble, column i + 16 in the high one.
#[inline(always)]
fn pack_nibbles(numbers: &[u8; COLUMNS]) -> [u8; COLUMNS / 2] {
    let mut bytes = [0; COLUMNS / 2];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = numbers[i] | numbers[i + COLUMNS / 2] << 4;
    }
    bytes
}

#[inline(always)]
fn q4_0(block: &mut Q4_0, row: usize, values: &[f32; COLUMNS], weights: Weights<COLUMNS>) {
    let size = largest(values);
    // The first value of the largest size, with its sign, becomes −8.
    let mut largest_at = 0u32;
    for (at, value) in values.iter().enumerate() {
        largest_at |= u32::from(value.abs() == size) << at;
    }
    let signed = values[largest_at.trailing_zeros() as usize % COLUMNS];
    let (half, inverse) = scale(match weights {
        None => signed / -8.0,
        Some(weights) => search::fit_scale(values, weights, signed),
    });
    block.scales[row] = half;
    let mut numbers = [0; COLUMNS];
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = truncate(value * inverse + 8.5, 15);
    }
    put_words(&mut block.numbers, row, &pack_nibbles(&numbers));
}

/// Rounds to numbers from 0 to `TOP`; returns scale and minimum in f16, and the numbers.
#[inline(always)]
fn asymmetric<const TOP: u8>(
    values: &[f32; COLUMNS],
    weights: Weights<COLUMNS>,
) -> ([u16; 2], [u8; COLUMNS]) {
    // Independent lanes, because minima over one sequence could not be vectorized.
    let (mut lows, mut highs) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for values in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lows[lane] = if values[lane] < lows[lane] { values[lane] } else { lows[lane] };
            highs[lane] = if values[lane] > highs[lane] { values[lane] } else { highs[lane] };
        }
    }
    let min = lows.into_iter().fold(f32::INFINITY, f32::min);
    let max = highs.into_iter().fold(f32::NEG_INFINITY, f32::max);
    // A minimum beyond f16's range would become infinite.
    let finite = |min: f32| min.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
    let top = f32::from(TOP);
    let (exact, min) = match weights {
        None => ((max - finite(min)) / top, finite(min)),
        Some(weights) => {
            let [scale, min] = search::fit_line(values, weights, [min, max], top);
            (scale, finite(min))
        }
    };
    let (half, inverse) = scale(exact);
    let mut numbers = [0; COLUMNS];
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = truncate((value - min) * inverse + 0.5, TOP);
    }
    ([half, f16::from_f32(min).to_bits()], numbers)
}

#[inline(always)]
fn q4_1(block: &mut Q4_1, row: usize, values: &[f32; COLUMNS], weights: Weights<COLUMNS>) {
    let ([scale, minimum], numbers) = asymmetric::<15>(values, weights);
    (block.scales[row], block.minima[row]) = (scale, minimum);
    put_words(&mut block.numbers, row, &pack_nibbles(&numbers));
}

#[inline(always)]
fn q5_1(block: &mut Q5_1, row: usize, values: &[f32; COLUMNS], weights: Weights<COLUMNS>) {
    let ([scale, minimum], numbers) = asymmetric::<31>(values, weights);
    block.set(row, scale, minimum, &numbers);
}

/// Rounds to Q4_K, whose scales are always searched.
fn q4_k(
    block: &mut Q4K,
    row: usize,
    values: &[f32; 8 * COLUMNS],
    weights: Weights<{ 8 * COLUMNS }>,
) {
    let rounded = q4_k::rounded(values, weights);
    if !rounded.scale.is_finite() || !rounded.minimum.is_finite() {
        // Weights beyond f16's range, which models do not have: the block stays zero.
        return;
    }
    // Flip the sign of the minimum: chunks add it, the file format subtracts it.
    (block.scales[row], block.minima[row]) =
        (rounded.scale.to_bits(), rounded.minimum.to_bits() ^ 0x8000);
    for sub_block in 0..8 {
        block.sub_scales[sub_block][row] = rounded.sub_scales[0][sub_block];
        block.sub_minima[sub_block][row] = rounded.sub_scales[1][sub_block];
    }
    for (words, numbers) in block.numbers.iter_mut().zip(rounded.numbers.as_chunks().0) {
        put_words(words, row, &pack_nibbles(numbers));
    }
}

/// Implements [`Encode`] for blocks.
macro_rules! encode {
    ($block:ident, $quantise:ident) => {
        impl Encode for $block {
            type Value = f32;

            fn read<E>(
                rows: &(impl ReadRows<E> + ?Sized),
                first: usize,
                values: &mut [f32],
            ) -> Result<(), E> {
                rows.f32(first, values)
            }

            #[inline(always)]
            fn set(&mut self, row: usize, values: &[f32], weights: Option<&[f32]>) {
                // Always a full block: `Packed::load` asserts that blocks divide the columns.
                if let Some(block) = values.first_chunk() {
                    $quantise(self, row, block, weights.and_then(|weights| weights.first_chunk()));
                }
            }
        }
    };
}
encode!(Q8_0, q8_0);
encode!(Q4_0, q4_0);
encode!(Q4_1, q4_1);
encode!(Q5_1, q5_1);
encode!(Q4K, q4_k);
