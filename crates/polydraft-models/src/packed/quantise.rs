//! Rounding of weights to blocks, as ggml's reference does it; or with scales that were searched
//! for ([`search`](super::search)), where it is known how much an error in each column counts.
//!
//! Source: `quantize_row_q8_0_ref`, `_q4_0_ref`, `_q4_1_ref` and `_q5_1_ref` of ggml, to the bit
//! where f16 holds the scale. A scale beyond f16's range becomes its largest number, and numbers
//! beyond that the largest that the block has.

#![allow(unsafe_code)]

use candle_core::quantized::k_quants::{BlockQ4K, GgmlType};
use half::f16;

use super::blocks::{Block, COLUMNS, Q4_0, Q4_1, Q4K, Q8_0, put};
use super::planes::Q5_1;
use super::search;

/// How much errors count, by column.
type Weights<'a, const N: usize> = Option<&'a [f32; N]>;

/// 1.5 · 2^23: added to a small number, it leaves that number, rounded to even, in the lowest bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Numbers that are compared at once.
const LANES: usize = 16;

/// The largest size; a maximum of bits, which vectors have.
#[inline(always)]
pub(super) fn largest(values: &[f32; COLUMNS]) -> f32 {
    let mut largest = 0u32;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    f32::from_bits(largest)
}

/// A scale as f16 holds it, and what numbers are multiplied with.
#[inline(always)]
fn scale(exact: f32) -> (u16, f32) {
    let most = f16::MAX.to_f32();
    let scale = exact.clamp(-most, most);
    (f16::from_f32(scale).to_bits(), if scale != 0.0 { 1.0 / scale } else { 0.0 })
}

#[inline(always)]
pub(super) fn q8_0(
    block: &mut Q8_0,
    row: usize,
    values: &[f32; COLUMNS],
    _weights: Weights<COLUMNS>,
) {
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
pub(super) fn q4_0(
    block: &mut Q4_0,
    row: usize,
    values: &[f32; COLUMNS],
    weights: Weights<COLUMNS>,
) {
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
pub(super) fn q4_1(
    block: &mut Q4_1,
    row: usize,
    values: &[f32; COLUMNS],
    weights: Weights<COLUMNS>,
) {
    let ([scale, minimum], numbers) = above_minimum::<15>(values, weights);
    (block.scales[row], block.minima[row]) = (scale, minimum);
    put(&mut block.numbers, row, &halves(&numbers));
}

#[inline(always)]
pub(super) fn q5_1(
    block: &mut Q5_1,
    row: usize,
    values: &[f32; COLUMNS],
    weights: Weights<COLUMNS>,
) {
    let ([scale, minimum], numbers) = above_minimum::<31>(values, weights);
    block.set(row, scale, minimum, &numbers);
}

/// By candle, which always searches for the scales that lose the least.
pub(super) fn q4_k(
    block: &mut Q4K,
    row: usize,
    values: &[f32; 8 * COLUMNS],
    weights: Weights<{ 8 * COLUMNS }>,
) {
    let mut found = [BlockQ4K::zeros()];
    match weights {
        None => BlockQ4K::from_float(values, &mut found),
        Some(weights) => BlockQ4K::from_float_imatrix(values, &mut found, weights, 8 * COLUMNS),
    }
    // SAFETY: a `BlockQ4K` is ggml's block_q4_K, `repr(C)`: two numbers of f16 and bytes, without
    // gaps.
    let bytes = unsafe { std::mem::transmute::<[BlockQ4K; 1], [u8; size_of::<BlockQ4K>()]>(found) };
    if block.set_file(row, &bytes).is_err() {
        // Weights beyond f16's range, which a model does not have: they count as zeros.
        (block.scales[row], block.minima[row]) = (0, 0);
    }
}
