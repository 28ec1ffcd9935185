//! Tensors of a file, read as blocks or as f32.

use std::ops::Range;
use std::path::Path;

use crate::dequantize::dequantize;
use crate::error::Fault;
use crate::header::Info;
use crate::source::Source;
use crate::tensor_type::TensorType;
use crate::{Error, Result};

/// Number of bytes to read at a time: few enough to stay in the cache until they are converted.
const READ_BYTES: usize = 1 << 17;

/// A tensor of a file. Several threads can read it at the same time.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'g> {
    source: &'g Source,
    name: &'g str,
    info: &'g Info,
}

impl<'g> Tensor<'g> {
    pub(crate) fn new(source: &'g Source, name: &'g str, info: &'g Info) -> Self {
        Self { source, name, info }
    }

    /// Returns the name.
    pub fn name(&self) -> &'g str {
        self.name
    }

    /// Returns the path of its file.
    pub fn path(&self) -> &'g Path {
        &self.source.path
    }

    /// Returns the position of the first byte in the file.
    pub fn offset(&self) -> u64 {
        self.info.start
    }

    /// Returns the storage type.
    pub fn kind(&self) -> TensorType {
        self.info.kind
    }

    /// Returns the shape, columns last: `[rows, columns]` for a matrix. (Files have the reverse
    /// order.)
    pub fn shape(&self) -> Vec<usize> {
        self.info.dimensions.iter().rev().copied().collect()
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.info.dimensions.first().copied().unwrap_or(1)
    }

    /// Returns the number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        // Cannot overflow: the number of bytes, which is larger, was checked.
        self.info.dimensions.iter().skip(1).product()
    }

    /// Returns the number of bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns() / self.kind().block() * self.kind().block_bytes()
    }

    /// Returns the number of bytes of all rows.
    pub fn bytes(&self) -> usize {
        // Cannot overflow: it was computed as usize.
        self.info.bytes as usize
    }

    /// Checks the shape, columns last.
    ///
    /// # Errors
    /// Another shape.
    pub fn expect_shape(&self, shape: &[usize]) -> Result<()> {
        match self.shape() == shape {
            true => Ok(()),
            false => {
                Err(self.invalid(format!("shape {shape:?}"), format!("shape {:?}", self.shape())))
            }
        }
    }

    /// Reads the blocks of rows into `blocks`, `[rows.len() · row_bytes]`.
    ///
    /// # Errors
    /// Rows out of range; `blocks` of another length; a file that cannot be read.
    pub fn read_rows(&self, rows: Range<usize>, blocks: &mut [u8]) -> Result<()> {
        self.check_rows(&rows, self.row_bytes(), blocks.len(), "bytes")?;
        self.source.read(self.info.start + (rows.start * self.row_bytes()) as u64, blocks)
    }

    /// Reads all blocks.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut blocks = vec![0; self.bytes()];
        self.source.read(self.info.start, &mut blocks)?;
        Ok(blocks)
    }

    /// Reads rows into `values` as f32, `[rows.len(), columns]`, without rounding beyond that of
    /// the blocks.
    ///
    /// # Errors
    /// Rows out of range; `values` of another length; a type that is not in
    /// [`DEQUANTIZED`](crate::DEQUANTIZED); a file that cannot be read.
    pub fn dequantize_rows(&self, rows: Range<usize>, values: &mut [f32]) -> Result<()> {
        self.check_rows(&rows, self.columns(), values.len(), "numbers")?;
        let kind = self.kind();
        let (block, block_bytes) = (kind.block(), kind.block_bytes());
        let chunk = (READ_BYTES / block_bytes).max(1);
        let mut buffer = vec![0; (chunk * block_bytes).min(rows.len() * self.row_bytes())];
        let mut at = self.info.start + (rows.start * self.row_bytes()) as u64;
        for values in values.chunks_mut(chunk * block) {
            let blocks = &mut buffer[..values.len() / block * block_bytes];
            self.source.read(at, blocks)?;
            dequantize(kind, blocks, values).map_err(|e| self.invalid(e.expected, e.got))?;
            at += blocks.len() as u64;
        }
        Ok(())
    }

    /// Reads all rows as f32, `[rows, columns]`.
    ///
    /// # Errors
    /// The errors of [`dequantize_rows`](Self::dequantize_rows).
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.rows() * self.columns()];
        self.dequantize_rows(0..self.rows(), &mut values)?;
        Ok(values)
    }

    fn check_rows(
        &self,
        rows: &Range<usize>,
        size: usize,
        length: usize,
        unit: &str,
    ) -> Result<()> {
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(
                self.invalid(format!("rows below {}", self.rows()), format!("rows {rows:?}"))
            );
        }
        match rows.len() * size == length {
            true => Ok(()),
            false => {
                let expected =
                    format!("a buffer of {} {unit} for rows {rows:?}", rows.len() * size);
                Err(self.invalid(expected, format!("a buffer of {length}")))
            }
        }
    }

    pub(crate) fn invalid(&self, expected: String, got: String) -> Error {
        Fault::tensor(self.name, expected, got).at(&self.source.path)
    }
}
