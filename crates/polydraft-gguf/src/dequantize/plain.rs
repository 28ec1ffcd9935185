//! Types without blocks, and blocks of 32 numbers with one scale.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16 as half16};

use super::scale;

pub(super) fn f32(bytes: &[u8], values: &mut [f32]) {
    for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
        *value = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn bf16(bytes: &[u8], values: &mut [f32]) {
    for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
        *value = bf16::from_le_bytes(*bytes).to_f32();
    }
}

/// Converts f16 in chunks, so that several numbers are converted per instruction.
pub(super) fn f16(bytes: &[u8], values: &mut [f32]) {
    const CHUNK: usize = 256;
    let mut halves = [half16::ZERO; CHUNK];
    for (bytes, values) in bytes.chunks(2 * CHUNK).zip(values.chunks_mut(CHUNK)) {
        let halves = &mut halves[..values.len()];
        for (bytes, half) in bytes.as_chunks().0.iter().zip(&mut *halves) {
            *half = half16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(values);
    }
}

/// Converts Q8_0: a scale and 32 signed bytes.
#[inline(always)]
pub(super) fn q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (value, byte) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(*byte as i8) * d;
    }
}

/// Converts Q4_0: a scale and 16 bytes, with the first half of the numbers in low nibbles and the
/// second in high nibbles. Numbers have an offset of 8.
#[inline(always)]
pub(super) fn q4_0(block: &[u8; 18], values: &mut [f32; 32]) {
    let d = scale(block, 0);
    let (low, high) = values.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = d * f32::from((byte & 15) as i8 - 8);
        *high = d * f32::from((byte >> 4) as i8 - 8);
    }
}

/// Converts Q4_1: like Q4_0, with a minimum instead of the offset.
#[inline(always)]
pub(super) fn q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    let (low, high) = values.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[4..]) {
        *low = d * f32::from(byte & 15) + m;
        *high = d * f32::from(byte >> 4) + m;
    }
}

/// Unpacks numbers of five bits. Bit i of `word` is the fifth bit of number i. Masks are used
/// instead of shifts, because they vectorize.
#[inline(always)]
fn five_bits(word: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut bits = [0; 32];
    for (bits, byte) in bits.as_chunks_mut::<8>().0.iter_mut().zip(word) {
        for (bit, mask) in bits.iter_mut().zip([1, 2, 4, 8, 16, 32, 64, 128]) {
            *bit = if byte & mask == 0 { 0 } else { 16 };
        }
    }
    let (low, high) = bits.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low |= byte & 15;
        *high |= byte >> 4;
    }
    bits
}

#[inline(always)]
pub(super) fn q5_0(block: &[u8; 22], values: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (value, bits) in values.iter_mut().zip(five_bits(&block[2..6], &block[6..])) {
        *value = d * f32::from(bits as i8 - 16);
    }
}

#[inline(always)]
pub(super) fn q5_1(block: &[u8; 24], values: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    for (value, bits) in values.iter_mut().zip(five_bits(&block[4..8], &block[8..])) {
        *value = d * f32::from(bits) + m;
    }
}

/// Unpacks the numbers of [`Integers`](super::Integers).
pub(super) fn q5_0_numbers(block: &[u8; 22]) -> [u8; 32] {
    five_bits(&block[2..6], &block[6..])
}

pub(super) fn q5_1_numbers(block: &[u8; 24]) -> [u8; 32] {
    five_bits(&block[4..8], &block[8..])
}
