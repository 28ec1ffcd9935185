//! Transposes packed integers: GPTQ and AWQ store columns, in the order that their kernels read.
//!
//! Sources: vLLM's `pack_rows` (GPTQ) and `awq_pack`.

use super::stored::StoredTensor;
use crate::error::Result;

/// Position in its AWQ word of the number of each of eight rows.
pub(super) const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Approximate number of bytes that are read and transposed at a time.
const SLAB_BYTES: usize = 1 << 20;

/// Transposes a matrix of `width` columns.
pub(super) fn columns(values: &[f32], width: usize) -> Vec<f32> {
    (0..width).flat_map(|row| values[row..].iter().step_by(width).copied()).collect()
}

/// Transposes words that contain neighbours of a column (GPTQ) to rows of words.
pub(super) fn words(
    numbers: &StoredTensor,
    bits: u32,
    [rows, columns]: [usize; 2],
) -> Result<Vec<u8>> {
    let across = columns / (32 / bits) as usize;
    let mut transposed = vec![[0u8; 4]; rows * across];
    each_slab(numbers, rows, across, |first, slab| {
        for (row, transposed) in transposed.chunks_exact_mut(across).enumerate() {
            for (to, from) in transposed[first..].iter_mut().zip(slab[row..].iter().step_by(rows)) {
                *to = *from;
            }
        }
    })?;
    Ok(transposed.into_flattened())
}

/// Transposes words that contain eight neighbours of a row of the file, in AWQ's order, to rows of
/// 4-bit numbers, two per byte.
pub(super) fn half_bytes(numbers: &StoredTensor, [rows, columns]: [usize; 2]) -> Result<Vec<u8>> {
    let (words, width) = (rows / 8, columns.div_ceil(2));
    let mut transposed = vec![0u8; rows * width];
    each_slab(numbers, words, columns, |first, slab| {
        for (word, transposed) in transposed.chunks_exact_mut(8 * width).enumerate() {
            for (column, bytes) in (first..).zip(slab[word..].iter().step_by(words)) {
                let number = u32::from_le_bytes(*bytes);
                for (row, position) in AWQ_ORDER.iter().enumerate() {
                    let half = (number >> (4 * position)) as u8 & 15;
                    transposed[row * width + column / 2] |= half << (4 * (column % 2));
                }
            }
        }
    })?;
    Ok(transposed)
}

/// Reads `count` rows of `width` words in slabs; `take` gets the index of a slab's first row and
/// its words.
fn each_slab(
    numbers: &StoredTensor,
    width: usize,
    count: usize,
    mut take: impl FnMut(usize, &[[u8; 4]]),
) -> Result<()> {
    let slab_rows = (SLAB_BYTES / 4 / width).max(1);
    for first in (0..count).step_by(slab_rows) {
        let rows = slab_rows.min(count - first);
        take(first, &numbers.bytes(first * width, rows * width)?);
    }
    Ok(())
}
