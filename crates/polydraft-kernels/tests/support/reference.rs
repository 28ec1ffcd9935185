//! Reference implementation of rounding to blocks, as in ggml's C code, number by number; and
//! synthetic blocks of files. It shares no code with the crate, and must give the same bits.
#![allow(dead_code)] // each test uses a part

use half::f16;
use polydraft_gguf::TensorType;

/// Returns the blocks of numbers in a file, as by ggml's `quantize_row_*_ref`.
pub fn quantised(kind: TensorType, values: &[f32]) -> Vec<u8> {
    let block = match kind {
        TensorType::Q8_0 => q8_0,
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        other => panic!("{other} has no reference here"),
    };
    values.as_chunks::<32>().0.iter().flat_map(block).collect()
}

/// Returns the numbers of blocks of a file in f32.
pub fn dequantized(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / kind.block_bytes() * kind.block()];
    polydraft_gguf::dequantize(kind, bytes, &mut values).unwrap();
    values
}

fn inverse(scale: f32) -> f32 {
    if scale != 0.0 { 1.0 / scale } else { 0.0 }
}

fn q8_0(values: &[f32; 32]) -> Vec<u8> {
    let scale = values.iter().fold(0f32, |max, v| max.max(v.abs())) / 127.0;
    let numbers = values.iter().map(|v| (v * inverse(scale)).round() as i8 as u8);
    f16::from_f32(scale).to_le_bytes().into_iter().chain(numbers).collect()
}

/// Returns a scale in f16, and numbers up to `top` with an offset of half of it.
fn around_zero(values: &[f32; 32], top: u8) -> (Vec<u8>, Vec<u8>) {
    let mut max = 0f32;
    for value in values {
        if value.abs() > max.abs() {
            max = *value;
        }
    }
    let half = f32::from(top / 2 + 1);
    let scale = max / -half;
    let number = |value: &f32| ((value * inverse(scale) + (half + 0.5)) as u8).min(top);
    (f16::from_f32(scale).to_le_bytes().to_vec(), values.iter().map(number).collect())
}

/// Packs the low four bits of numbers: the first sixteen in low nibbles, the others in high ones.
fn pairs(numbers: &[u8]) -> impl Iterator<Item = u8> {
    (0..16).map(|i| numbers[i] & 15 | (numbers[i + 16] & 15) << 4)
}

/// Packs the fifth bits of numbers.
fn fifths(numbers: &[u8]) -> [u8; 4] {
    (0..32).fold(0u32, |bits, i| bits | u32::from(numbers[i] >> 4) << i).to_le_bytes()
}

fn q4_0(values: &[f32; 32]) -> Vec<u8> {
    let (half, numbers) = around_zero(values, 15);
    half.into_iter().chain(pairs(&numbers)).collect()
}

fn q5_0(values: &[f32; 32]) -> Vec<u8> {
    let (half, numbers) = around_zero(values, 31);
    half.into_iter().chain(fifths(&numbers)).chain(pairs(&numbers)).collect()
}

/// Returns scale and minimum in f16, and numbers up to `top`.
fn above_minimum(values: &[f32; 32], top: u8) -> (Vec<u8>, Vec<u8>) {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (max - min) / f32::from(top);
    let halves = [scale, min].map(|number| f16::from_f32(number).to_le_bytes());
    let number = |value: &f32| (((value - min) * inverse(scale) + 0.5) as u8).min(top);
    (halves.concat(), values.iter().map(number).collect())
}

fn q4_1(values: &[f32; 32]) -> Vec<u8> {
    let (halves, numbers) = above_minimum(values, 15);
    halves.into_iter().chain(pairs(&numbers)).collect()
}

fn q5_1(values: &[f32; 32]) -> Vec<u8> {
    let (halves, numbers) = above_minimum(values, 31);
    halves.into_iter().chain(fifths(&numbers)).chain(pairs(&numbers)).collect()
}

/// Returns `count` blocks with arbitrary numbers and sub-block scales, and with finite scales and
/// minima of every size and sign.
pub fn blocks(kind: TensorType, count: usize) -> Vec<u8> {
    const SCALES: [f32; 7] = [0.01, -0.003, 1.5, 0.0, 6e-6, 3e-4, 4.0];
    let halves = match kind {
        TensorType::Q8_0 | TensorType::Q4_0 | TensorType::Q5_0 => 0..1,
        TensorType::IQ4_NL | TensorType::IQ4_XS => 0..1,
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => 0..2,
        TensorType::Q2_K => kind.block_bytes() / 2 - 2..kind.block_bytes() / 2,
        TensorType::Q3_K | TensorType::Q6_K => kind.block_bytes() / 2 - 1..kind.block_bytes() / 2,
        other => panic!("{other} has no blocks"),
    };
    let mut bytes = Vec::with_capacity(count * kind.block_bytes());
    for block in 0..count {
        let pattern = (0..kind.block_bytes()).map(|at| match block % 9 {
            7 => 0,
            8 => 0xff,
            _ => ((block * 1009 + at) as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0],
        });
        let start = bytes.len();
        bytes.extend(pattern);
        for (number, half) in halves.clone().enumerate() {
            let scale = SCALES[(block + 3 * number) % SCALES.len()];
            bytes[start + 2 * half..][..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    bytes
}
