//! K-quants: blocks of 256 numbers, with a scale of 4 to 8 bits for every 16 or 32 numbers.

use super::scale;

/// Unpacks numbers of two bits. Every 32 bytes hold 128 numbers: bits 0 and 1 of all bytes hold the
/// first 32 numbers, bits 2 and 3 the next 32, and so on.
#[inline(always)]
fn two_bits(bytes: &[u8]) -> [u8; 256] {
    let mut bits = [0; 256];
    for (bits, bytes) in bits.as_chunks_mut::<128>().0.iter_mut().zip(bytes.as_chunks::<32>().0) {
        for (quarter, bits) in bits.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (bit, byte) in bits.iter_mut().zip(bytes) {
                *bit = (byte >> (2 * quarter)) & 3;
            }
        }
    }
    bits
}

/// Converts Q2_K: 16 bytes with 4 bits of a scale and of a minimum each, 64 bytes of 2-bit numbers,
/// block scale, block minimum.
#[inline(always)]
pub(super) fn q2_k(block: &[u8; 84], values: &mut [f32; 256]) {
    let (scales, bits) = (&block[..16], &block[16..80]);
    let (d, min) = (scale(block, 80), scale(block, 82));
    // Not with `two_bits`: one pass is faster than two here.
    for (group, values) in values.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = d * f32::from(scales[group] & 15);
        let ml = min * f32::from(scales[group] >> 4);
        let shift = group / 2 % 4 * 2;
        let bytes = &bits[group / 8 * 32 + group % 2 * 16..][..16];
        for (value, byte) in values.iter_mut().zip(bytes) {
            *value = dl * f32::from((byte >> shift) & 3) - ml;
        }
    }
}

/// Converts Q3_K: 32 bytes of third bits (bit g of byte i belongs to number 32g + i), 64 bytes of
/// the lower two bits, 16 scales of 6 bits, block scale. Numbers have an offset of 4.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], values: &mut [f32; 256]) {
    let d = scale(block, 108);
    let (bits, scales) = (q3_numbers(block), q3_scales(block));
    let groups = values.as_chunks_mut::<16>().0.iter_mut().zip(bits.as_chunks::<16>().0);
    for ((values, bits), scale) in groups.zip(scales) {
        let dl = d * f32::from(scale);
        for (value, bits) in values.iter_mut().zip(bits) {
            *value = dl * f32::from(*bits as i8 - 4);
        }
    }
}

#[inline(always)]
fn q3_numbers(block: &[u8; 110]) -> [u8; 256] {
    let mut bits = two_bits(&block[32..96]);
    for (bits, mask) in bits.as_chunks_mut::<32>().0.iter_mut().zip([1, 2, 4, 8, 16, 32, 64, 128]) {
        for (bit, third) in bits.iter_mut().zip(&block[..32]) {
            *bit |= if third & mask == 0 { 0 } else { 4 };
        }
    }
    bits
}

/// Unpacks the scales of Q3_K. The lower four bits of scale g are a nibble of byte g mod 8, the
/// upper two are a quarter of byte 8 + g mod 4.
#[inline(always)]
fn q3_scales(block: &[u8; 110]) -> [i8; 16] {
    let packed = &block[96..108];
    std::array::from_fn(|group| {
        let low = (packed[group % 8] >> (group / 8 * 4)) & 15;
        let high = (packed[8 + group % 4] >> (group / 4 * 2)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Unpacks eight pairs of a scale and a minimum, 6 bits each, from 12 bytes.
#[inline(always)]
fn six_bit_pairs(packed: &[u8]) -> [(u8, u8); 8] {
    std::array::from_fn(|i| match i {
        0..4 => (packed[i] & 63, packed[i + 4] & 63),
        _ => (
            (packed[i + 4] & 15) | ((packed[i - 4] >> 2) & 48),
            (packed[i + 4] >> 4) | ((packed[i] >> 2) & 48),
        ),
    })
}

#[inline(always)]
fn scales_and_minima(packed: &[u8], d: f32, min: f32) -> [(f32, f32); 8] {
    six_bit_pairs(packed).map(|(scale, minimum)| (d * f32::from(scale), min * f32::from(minimum)))
}

/// Converts Q4_K: block scale, block minimum, 6-bit scales and minima, 128 bytes of 4-bit numbers.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], values: &mut [f32; 256]) {
    let groups = scales_and_minima(&block[4..16], scale(block, 0), scale(block, 2));
    let halves = values.as_chunks_mut::<64>().0.iter_mut().zip(block[16..].as_chunks::<32>().0);
    for ((values, bytes), groups) in halves.zip(groups.as_chunks::<2>().0) {
        let [(d_low, m_low), (d_high, m_high)] = *groups;
        let (low, high) = values.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = d_low * f32::from(byte & 15) - m_low;
            *high = d_high * f32::from(byte >> 4) - m_high;
        }
    }
}

/// Converts Q5_K: like Q4_K, with 32 bytes of fifth bits before the 4-bit numbers. Bit g of byte i
/// belongs to number i of group g.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], values: &mut [f32; 256]) {
    let groups = scales_and_minima(&block[4..16], scale(block, 0), scale(block, 2));
    let fifth = &block[16..48];
    let halves = values.as_chunks_mut::<64>().0.iter_mut().zip(block[48..].as_chunks::<32>().0);
    for (pair, ((values, bytes), groups)) in halves.zip(groups.as_chunks::<2>().0).enumerate() {
        let [(d_low, m_low), (d_high, m_high)] = *groups;
        let (low, high) = values.split_at_mut(32);
        for (((low, high), byte), fifth) in low.iter_mut().zip(high).zip(bytes).zip(fifth) {
            let bits = fifth >> (2 * pair);
            *low = d_low * f32::from((byte & 15) | (bits & 1) << 4) - m_low;
            *high = d_high * f32::from((byte >> 4) | (bits & 2) << 3) - m_high;
        }
    }
}

/// Converts Q6_K: 128 bytes of the lower four bits, 64 bytes of the upper two, 16 signed scales,
/// block scale. Every 64 bytes of the lower bits hold 128 numbers, the first 64 in low nibbles.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], values: &mut [f32; 256]) {
    let d = scale(block, 208);
    let bits = q6_numbers(block);
    let groups = values.as_chunks_mut::<16>().0.iter_mut().zip(bits.as_chunks::<16>().0);
    for ((values, bits), scale) in groups.zip(&block[192..208]) {
        let dl = d * f32::from(*scale as i8);
        for (value, bits) in values.iter_mut().zip(bits) {
            *value = dl * f32::from(*bits as i8 - 32);
        }
    }
}

#[inline(always)]
fn q6_numbers(block: &[u8; 210]) -> [u8; 256] {
    let mut bits = two_bits(&block[128..192]);
    for (bits, bytes) in
        bits.as_chunks_mut::<128>().0.iter_mut().zip(block[..128].as_chunks::<64>().0)
    {
        let (low, high) = bits.split_at_mut(64);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = *low << 4 | byte & 15;
            *high = *high << 4 | byte >> 4;
        }
    }
    bits
}

/// Unpacks numbers; returns the scales of [`Integers`](super::Integers). So do the functions below.
pub(super) fn q2_k_integers(block: &[u8; 84], numbers: &mut [u8; 256]) -> [u8; 16] {
    *numbers = two_bits(&block[16..80]);
    std::array::from_fn(|group| block[group])
}

pub(super) fn q3_k_integers(block: &[u8; 110], numbers: &mut [u8; 256]) -> [u8; 16] {
    *numbers = q3_numbers(block);
    q3_scales(block).map(|scale| scale as u8)
}

pub(super) fn q5_k_integers(block: &[u8; 176], numbers: &mut [u8; 256]) -> [u8; 16] {
    let (fifth, four) = (&block[16..48], &block[48..]);
    for (group, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (at, number) in numbers.iter_mut().enumerate() {
            let byte = four[group / 2 * 32 + at];
            let low = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *number = low | (fifth[at] >> group & 1) << 4;
        }
    }
    let pairs = six_bit_pairs(&block[4..16]);
    std::array::from_fn(|i| if i < 8 { pairs[i].0 } else { pairs[i - 8].1 })
}

pub(super) fn q6_k_integers(block: &[u8; 210], numbers: &mut [u8; 256]) -> [u8; 16] {
    *numbers = q6_numbers(block);
    std::array::from_fn(|group| block[192 + group])
}
