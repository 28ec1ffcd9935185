//! MXFP4 matrices in model directories, with numbers and scales in separate tensors.

use polydraft_gguf::{TensorType, dequantize, mxfp4_to_q5_0};
use polydraft_kernels::Format;

use super::element::Element;
use super::stored;
use super::tensor_header::MXFP4_BYTES as BYTES;
use crate::error::{Error, Result};

const FILE_BYTES: usize = 1 + BYTES;

/// Rows of MXFP4 blocks.
pub(crate) struct Mxfp4 {
    /// Numbers, `[.., blocks, 16]`: number 2i of a block is in the lower half of byte i, number 2i
    /// + 1 in the upper half.
    pub numbers: stored::StoredTensor,
    /// Scales, `[.., blocks]`: exponents of two with a bias of 127.
    pub scales: stored::StoredTensor,
    /// Blocks per row.
    pub blocks: usize,
}

impl Mxfp4 {
    /// Format that stores the matrix exactly.
    pub fn exact(&self) -> Format {
        Format::from_tensor_type(TensorType::MXFP4)
    }

    /// Reads rows from row `first` on in ggml's layout: the scale, then the first half of the
    /// numbers in the lower halves of 16 bytes and the second in the upper halves.
    fn rows(&self, first: usize, count: usize) -> Result<Vec<u8>> {
        let blocks = count * self.blocks;
        let numbers: Vec<[u8; BYTES]> = self.numbers.bytes(first * self.blocks, blocks)?;
        let scales: Vec<[u8; 1]> = self.scales.bytes(first * self.blocks, blocks)?;
        let mut all = Vec::with_capacity(blocks * FILE_BYTES);
        for (numbers, [scale]) in numbers.iter().zip(scales) {
            let number = |i: usize| numbers[i / 2] >> (4 * (i % 2)) & 15;
            all.push(scale);
            all.extend((0..BYTES).map(|i| number(i) | number(i + BYTES) << 4));
        }
        Ok(all)
    }

    /// Reads rows from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        let rows = self.rows(first, values.len() / columns)?;
        let mut wide = vec![0.0; values.len()];
        dequantize(TensorType::MXFP4, &rows, &mut wide)
            .map_err(|e| self.numbers.tensor_error(e.expected, e.got))?;
        for (value, wide) in values.iter_mut().zip(wide) {
            *value = T::from_f32(wide.to_le_bytes());
        }
        Ok(())
    }

    /// Reads rows as blocks of Q5_0, which represent the same values.
    pub fn blocks(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = self.blocks * TensorType::Q5_0.block_bytes();
        let rows = self.rows(first, bytes.len() / width)?;
        mxfp4_to_q5_0(&rows, bytes).map_err(|e| self.numbers.tensor_error(e.expected, e.got))
    }

    /// Error about a scale of a row.
    pub fn not_finite(&self, row: usize, got: f32) -> Error {
        self.numbers.tensor_error("finite scales".to_owned(), format!("{got} in row {row}"))
    }
}
