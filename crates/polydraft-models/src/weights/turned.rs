//! Packed numbers that lie by columns in their file, by rows: GPTQ and AWQ have what their kernels
//! read.
//!
//! Sources: vLLM's `pack_rows` (GPTQ) and `awq_pack`.

use super::stored::Stored;
use crate::error::Result;

/// In AWQ, where in its word the number of each of eight rows is.
pub(super) const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Bytes of a file that are turned at once, about.
const SLAB: usize = 1 << 20;

/// The columns of a matrix of `width` columns as rows.
pub(super) fn columns(values: &[f32], width: usize) -> Vec<f32> {
    (0..width).flat_map(|row| values[row..].iter().step_by(width).copied()).collect()
}

/// Words of neighbours in a column, as rows of words.
pub(super) fn words(numbers: &Stored, bits: u32, [rows, columns]: [usize; 2]) -> Result<Vec<u8>> {
    let across = columns / (32 / bits) as usize;
    let mut turned = vec![[0u8; 4]; rows * across];
    each_slab(numbers, rows, across, |first, slab| {
        for (row, turned) in turned.chunks_exact_mut(across).enumerate() {
            for (to, from) in turned[first..].iter_mut().zip(slab[row..].iter().step_by(rows)) {
                *to = *from;
            }
        }
    })?;
    Ok(turned.into_flattened())
}

/// Words of eight neighbours in a row of the file, in AWQ's order, as rows of halves of bytes.
pub(super) fn halves(numbers: &Stored, [rows, columns]: [usize; 2]) -> Result<Vec<u8>> {
    let (words, width) = (rows / 8, columns.div_ceil(2));
    let mut turned = vec![0u8; rows * width];
    each_slab(numbers, words, columns, |first, slab| {
        for (word, turned) in turned.chunks_exact_mut(8 * width).enumerate() {
            for (column, bytes) in (first..).zip(slab[word..].iter().step_by(words)) {
                let number = u32::from_le_bytes(*bytes);
                for (row, place) in PLACES.iter().enumerate() {
                    let half = (number >> (4 * place)) as u8 & 15;
                    turned[row * width + column / 2] |= half << (4 * (column % 2));
                }
            }
        }
    })?;
    Ok(turned)
}

/// Reads `count` rows of `width` words, some at once: `take` is given the first one's number.
fn each_slab(
    numbers: &Stored,
    width: usize,
    count: usize,
    mut take: impl FnMut(usize, &[[u8; 4]]),
) -> Result<()> {
    let together = (SLAB / 4 / width).max(1);
    for first in (0..count).step_by(together) {
        let now = together.min(count - first);
        take(first, &numbers.bytes(first * width, now * width)?);
    }
    Ok(())
}
