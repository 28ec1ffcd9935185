//! FP8 matrices in model directories: one byte per number, and a tensor with one scale for the
//! matrix, per row or per block.

use safetensors::tensor::Dtype;

use super::element::{Element, not_finite};
use super::float8::{e4m3, e5m2, e8m0};
use super::safetensors::Scaled;
use super::stored::StoredTensor;
use crate::error::{Error, Result};

/// Block size of MXFP8, whose scales, powers of two, compressed-tensors writes as U8.
const MX_BLOCK: [usize; 2] = [1, 32];

/// Rows of FP8 numbers with their scales.
pub(crate) struct Fp8 {
    numbers: StoredTensor,
    /// Value of each byte.
    values: [f32; 256],
    scales: Vec<f32>,
    grid: Grid,
}

impl Fp8 {
    /// Reads the scales of a tensor of this shape.
    pub fn new(scaled: Scaled, shape: &[usize]) -> Result<Self> {
        let Scaled { numbers, scales, shape: scale_shape, block } = scaled;
        let Some(grid) = Grid::new(shape, &scale_shape, block) else {
            let got = format!("shape {scale_shape:?}");
            return Err(scales.tensor_error(Grid::expected(shape, block), got));
        };
        let mut read = vec![0.0; scale_shape.iter().product()];
        match scales.dtype() {
            dtype if dtype == Dtype::F8_E8M0 || dtype == Dtype::U8 && grid.block == MX_BLOCK => {
                let bytes: Vec<[u8; 1]> = scales.bytes(0, read.len())?;
                for (scale, [byte]) in read.iter_mut().zip(bytes) {
                    *scale = e8m0(byte);
                }
                if let Some((at, got)) = not_finite(&read) {
                    return Err(
                        scales.tensor_error("finite scales".into(), format!("{got} at entry {at}"))
                    );
                }
            }
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => scales.read(0, &mut read)?,
            other => {
                let expected = "scales of type F32, F16, BF16 or F8_E8M0".to_owned();
                return Err(scales.tensor_error(expected, format!("type {other:?}")));
            }
        }
        let value = if numbers.dtype() == Dtype::F8_E5M2 { e5m2 } else { e4m3 };
        let values = std::array::from_fn(|byte| value(byte as u8));
        Ok(Self { numbers, values, scales: read, grid })
    }

    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        let bytes: Vec<[u8; 1]> = self.numbers.bytes(first * columns, values.len())?;
        let (columns, width) = (columns.max(1), self.grid.block[1].max(1));
        let rows = values.chunks_mut(columns).zip(bytes.chunks(columns));
        for (row, (values, bytes)) in (first..).zip(rows) {
            let blocks = values.chunks_mut(width).zip(bytes.chunks(width));
            for ((values, bytes), scale) in blocks.zip(&self.scales[self.grid.first(row)..]) {
                for (value, [byte]) in values.iter_mut().zip(bytes) {
                    let wide = self.values[usize::from(*byte)] * scale;
                    *value = T::from_f32(wide.to_le_bytes());
                }
            }
        }
        match not_finite(values) {
            None => Ok(()),
            Some((at, got)) => Err(self.not_finite_error(first + at / columns, at % columns, got)),
        }
    }

    fn not_finite_error(&self, row: usize, column: usize, got: f32) -> Error {
        let got = format!("{got} in row {row}, column {column}");
        self.numbers.tensor_error("finite numbers, times their scales too".to_owned(), got)
    }
}

/// Maps numbers to their scales.
#[derive(Debug, PartialEq, Eq)]
struct Grid {
    /// Rows per matrix; a tensor may stack several matrices.
    rows: usize,
    /// Rows and columns that share a scale.
    block: [usize; 2],
    /// Rows of scales per matrix, and scales per row.
    scales: [usize; 2],
}

impl Grid {
    /// Grid of a tensor of this shape with scales of shape `scales`; `None` if they do not fit.
    fn new(shape: &[usize], scales: &[usize], block: Option<[usize; 2]>) -> Option<Self> {
        let (columns, before) = shape.split_last()?;
        let (rows, count) = before.split_last().unwrap_or((&1, &[]));
        if scales.iter().all(|size| *size == 1) {
            let rows = before.iter().product();
            return Some(Self { rows, block: [rows, *columns], scales: [1, 1] });
        }
        let per_matrix = scales.strip_prefix(count)?;
        let blocks = |block: [usize; 2]| [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let block = match *per_matrix {
            [] | [1] | [1, 1] => [*rows, *columns],
            [each] | [each, 1] if each == *rows => [1, *columns],
            [down, across] if block.map(blocks) == Some([down, across]) => block?,
            _ => return None,
        };
        let scales =
            [per_matrix.first().copied().unwrap_or(1), per_matrix.get(1).copied().unwrap_or(1)];
        Some(Self { rows: *rows, block, scales })
    }

    /// Shapes that scales may have, for errors.
    fn expected(shape: &[usize], block: Option<[usize; 2]>) -> String {
        let [.., rows, columns] = *shape else { return "a scale of shape [1]".to_owned() };
        let count = &shape[..shape.len() - 2];
        let with = |end: &[usize]| [count, end].concat();
        let rows_each = with(&[rows, 1]);
        let block_shape = match block {
            None => "; config.json has no block size".to_owned(),
            Some(block) => {
                let grid = with(&[rows.div_ceil(block[0]), columns.div_ceil(block[1])]);
                format!(", or {grid:?} for blocks of {block:?}")
            }
        };
        format!("scales of shape [1] or {rows_each:?}{block_shape}")
    }

    /// Index of the scale of a row's first number; the row's other scales follow.
    fn first(&self, row: usize) -> usize {
        let (matrix, row) = (row / self.rows, row % self.rows);
        (matrix * self.scales[0] + row / self.block[0]) * self.scales[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_maps_rows_to_scales_for_all_shapes() {
        let block = Some([128, 64]);
        let grid = |shape: &[usize], scales: &[usize]| Grid::new(shape, scales, block);
        let firsts = |grid: Grid, rows: &[usize]| {
            rows.iter().map(|row| grid.first(*row)).collect::<Vec<_>>()
        };
        for scales in [&[][..], &[1], &[1, 1]] {
            let one = grid(&[200, 70], scales).unwrap();
            assert_eq!((one.block, firsts(one, &[0, 199])), ([200, 70], vec![0, 0]));
        }
        for scales in [&[200][..], &[200, 1]] {
            let each = grid(&[200, 70], scales).unwrap();
            assert_eq!((each.block, firsts(each, &[0, 199])), ([1, 70], vec![0, 199]));
        }
        let blocks = grid(&[200, 70], &[2, 2]).unwrap();
        assert_eq!(firsts(blocks, &[0, 127, 128, 199]), [0, 0, 2, 2]);
        let stacked = grid(&[3, 200, 70], &[3, 2, 2]).unwrap();
        assert_eq!(firsts(stacked, &[199, 200, 328, 599]), [2, 4, 6, 10]);
        for scales in [&[3][..], &[3, 1], &[3, 1, 1]] {
            let each = grid(&[3, 200, 70], scales).unwrap();
            assert_eq!(firsts(each, &[199, 200, 599]), [0, 1, 2]);
        }
        for unfit in [&[2][..], &[2, 1], &[1, 2], &[70], &[1, 70], &[2, 2, 1], &[0], &[2, 0]] {
            assert_eq!(grid(&[200, 70], unfit), None, "{unfit:?}");
        }
        assert_eq!(Grid::new(&[200, 70], &[2, 2], None), None);
        let expected = Grid::expected(&[200, 70], block);
        assert!(expected.contains("[200, 1]") && expected.contains("[2, 2]"), "{expected}");
    }
}
