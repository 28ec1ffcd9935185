//! Rounding of weights to blocks, as ggml's reference does it; or with scales that were searched
//! for ([`search`]), where it is known how much an error in each column counts.
//!
//! Source: `quantize_row_q8_0_ref`, `_q4_0_ref`, `_q4_1_ref` and `_q5_1_ref` of ggml, to the bit
//! where f16 holds the scale. A scale beyond f16's range becomes its largest number, and numbers
//! beyond that the largest that the block has.

mod q4_k;
mod search;

use half::f16;

use super::block::{COLUMNS, put};
use super::blocks::{Q4_0, Q4_1, Q4K, Q8_0};
use super::planes::Q5_1;
use super::read::ReadRows;
use super::round::{ROUND, largest};
use super::tiles::Fill;

/// How much errors count, by column.
type Weights<'a, const N: usize> = Option<&'a [f32; N]>;

/// Numbers that are compared at once.
const LANES: usize = 16;

/// A scale as f16 holds it, and what numbers are multiplied with.
#[inline(always)]
fn scale(exact: f32) -> (u16, f32) {
    let most = f16::MAX.to_f32();
    let scale = exact.clamp(-most, most);
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
    put(&mut block.numbers, row, &bytes);
}

/// From 0 to `top`: a value plus a half, cut.
#[inline(always)]
fn cut(raised: f32, top: u8) -> u8 {
    // Not below zero but for rounding errors, which the cut takes away.
    raised.clamp(0.0, f32::from(top)) as i32 as u8
}

/// Lower halves: the first 16 columns.
#[inline(always)]
fn halves(numbers: &[u8; COLUMNS]) -> [u8; COLUMNS / 2] {
    let mut bytes = [0; COLUMNS / 2];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = numbers[i] | numbers[i + COLUMNS / 2] << 4;
    }
    bytes
}

#[inline(always)]
fn q4_0(block: &mut Q4_0, row: usize, values: &[f32; COLUMNS], weights: Weights<COLUMNS>) {
    let size = largest(values);
    // The first of that size, with its sign: it becomes −8.
    let mut ends = 0u32;
    for (at, value) in values.iter().enumerate() {
        ends |= u32::from(value.abs() == size) << at;
    }
    let signed = values[ends.trailing_zeros() as usize % COLUMNS];
    let (half, inverse) = scale(match weights {
        None => signed / -8.0,
        Some(weights) => search::scale(values, weights, signed),
    });
    block.scales[row] = half;
    let mut numbers = [0; COLUMNS];
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = cut(value * inverse + 8.5, 15);
    }
    put(&mut block.numbers, row, &halves(&numbers));
}

/// Numbers from 0 to `TOP`, with a scale and a minimum, both in f16.
#[inline(always)]
fn above_minimum<const TOP: u8>(
    values: &[f32; COLUMNS],
    weights: Weights<COLUMNS>,
) -> ([u16; 2], [u8; COLUMNS]) {
    // Lane by lane: in one go over the numbers the compiler would have to keep their order.
    let (mut lows, mut highs) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for values in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lows[lane] = if values[lane] < lows[lane] { values[lane] } else { lows[lane] };
            highs[lane] = if values[lane] > highs[lane] { values[lane] } else { highs[lane] };
        }
    }
    let least = lows.into_iter().fold(f32::INFINITY, f32::min);
    let most = highs.into_iter().fold(f32::NEG_INFINITY, f32::max);
    // The least of very large numbers would not be finite in f16.
    let finite = |least: f32| least.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
    let top = f32::from(TOP);
    let (exact, least) = match weights {
        None => ((most - finite(least)) / top, finite(least)),
        Some(weights) => {
            let [scale, least] = search::line(values, weights, [least, most], top);
            (scale, finite(least))
        }
    };
    let (half, inverse) = scale(exact);
    let mut numbers = [0; COLUMNS];
    for (number, value) in numbers.iter_mut().zip(values) {
        *number = cut((value - least) * inverse + 0.5, TOP);
    }
    ([half, f16::from_f32(least).to_bits()], numbers)
}

#[inline(always)]
fn q4_1(block: &mut Q4_1, row: usize, values: &[f32; COLUMNS], weights: Weights<COLUMNS>) {
    let ([scale, minimum], numbers) = above_minimum::<15>(values, weights);
    (block.scales[row], block.minima[row]) = (scale, minimum);
    put(&mut block.numbers, row, &halves(&numbers));
}

#[inline(always)]
fn q5_1(block: &mut Q5_1, row: usize, values: &[f32; COLUMNS], weights: Weights<COLUMNS>) {
    let ([scale, minimum], numbers) = above_minimum::<31>(values, weights);
    block.set(row, scale, minimum, &numbers);
}

/// With scales that are always searched for.
fn q4_k(
    block: &mut Q4K,
    row: usize,
    values: &[f32; 8 * COLUMNS],
    weights: Weights<{ 8 * COLUMNS }>,
) {
    let found = q4_k::rounded(values, weights);
    if !found.scale.is_finite() || !found.minimum.is_finite() {
        // Weights beyond f16's range, which a model does not have: they count as zeros.
        return;
    }
    // It is added, not subtracted.
    (block.scales[row], block.minima[row]) =
        (found.scale.to_bits(), found.minimum.to_bits() ^ 0x8000);
    for part in 0..8 {
        block.scale_steps[part][row] = found.steps[0][part];
        block.minimum_steps[part][row] = found.steps[1][part];
    }
    for (words, numbers) in block.numbers.iter_mut().zip(found.numbers.as_chunks().0) {
        put(words, row, &halves(numbers));
    }
}

/// Blocks that numbers can be rounded to.
macro_rules! fill {
    ($block:ident, $quantise:ident) => {
        impl Fill for $block {
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
                // Always whole: `Packed::load` asks for columns that are.
                if let Some(block) = values.first_chunk() {
                    $quantise(self, row, block, weights.and_then(|weights| weights.first_chunk()));
                }
            }
        }
    };
}
fill!(Q8_0, q8_0);
fill!(Q4_0, q4_0);
fill!(Q4_1, q4_1);
fill!(Q5_1, q5_1);
fill!(Q4K, q4_k);
