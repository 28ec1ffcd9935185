//! Tensors: their blocks as the file has them, or as f32.

use std::ops::Range;
use std::path::Path;

use crate::dequantize::dequantize;
use crate::error::Fault;
use crate::header::Info;
use crate::source::Source;
use crate::tensor_type::TensorType;
use crate::{Error, Result};

/// Bytes that are read at once, so that they are still in the cache when they are converted.
const PIECE: usize = 1 << 17;

/// A tensor in its file. Threads may read one at the same time: nothing is shared but the file.
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

    /// Its name.
    pub fn name(&self) -> &'g str {
        self.name
    }

    /// The file that it is in.
    pub fn path(&self) -> &'g Path {
        &self.source.path
    }

    /// Of its first byte, in that file.
    pub fn offset(&self) -> u64 {
        self.info.start
    }

    /// How its numbers are stored.
    pub fn kind(&self) -> TensorType {
        self.info.kind
    }

    /// Its shape, columns last: `[rows, columns]` for a matrix. (The file has it the other way
    /// round.)
    pub fn shape(&self) -> Vec<usize> {
        self.info.dimensions.iter().rev().copied().collect()
    }

    /// Numbers in a row.
    pub fn columns(&self) -> usize {
        self.info.dimensions.first().copied().unwrap_or(1)
    }

    /// Rows, of all dimensions but the last together.
    pub fn rows(&self) -> usize {
        // Cannot overflow: the number of bytes, which is larger, was computed.
        self.info.dimensions.iter().skip(1).product()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns() / self.kind().block() * self.kind().block_bytes()
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        // Fits: it was a usize, and the file has them.
        self.info.bytes as usize
    }

    /// That it has this shape, columns last.
    ///
    /// # Errors
    /// Another one.
    pub fn expect_shape(&self, shape: &[usize]) -> Result<()> {
        match self.shape() == shape {
            true => Ok(()),
            false => {
                Err(self.wrong(format!("shape {shape:?}"), format!("shape {:?}", self.shape())))
            }
        }
    }

    /// Reads the blocks of some rows, `[rows.len() · row_bytes]`.
    ///
    /// # Errors
    /// Rows that are not there; room for more or fewer bytes; a file that cannot be read.
    pub fn read_rows(&self, rows: Range<usize>, blocks: &mut [u8]) -> Result<()> {
        self.check_rows(&rows, self.row_bytes(), blocks.len(), "bytes")?;
        self.source.read(self.info.start + (rows.start * self.row_bytes()) as u64, blocks)
    }

    /// All blocks, `[bytes]`.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut blocks = vec![0; self.bytes()];
        self.source.read(self.info.start, &mut blocks)?;
        Ok(blocks)
    }

    /// Reads some rows as f32, `[rows.len(), columns]`, each number exactly what the blocks say.
    ///
    /// # Errors
    /// Rows that are not there; room for more or fewer numbers; a type that has no exact f32 here,
    /// by name; a file that cannot be read.
    pub fn dequantize_rows(&self, rows: Range<usize>, values: &mut [f32]) -> Result<()> {
        self.check_rows(&rows, self.columns(), values.len(), "numbers")?;
        let kind = self.kind();
        let (block, block_bytes) = (kind.block(), kind.block_bytes());
        let piece = (PIECE / block_bytes).max(1);
        let mut buffer = vec![0; (piece * block_bytes).min(rows.len() * self.row_bytes())];
        let mut at = self.info.start + (rows.start * self.row_bytes()) as u64;
        for values in values.chunks_mut(piece * block) {
            let blocks = &mut buffer[..values.len() / block * block_bytes];
            self.source.read(at, blocks)?;
            dequantize(kind, blocks, values).map_err(|e| self.wrong(e.expected, e.got))?;
            at += blocks.len() as u64;
        }
        Ok(())
    }

    /// All of it as f32, `[rows, columns]`.
    ///
    /// # Errors
    /// As [`dequantize_rows`](Self::dequantize_rows).
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.rows() * self.columns()];
        self.dequantize_rows(0..self.rows(), &mut values)?;
        Ok(values)
    }

    fn check_rows(&self, rows: &Range<usize>, size: usize, room: usize, unit: &str) -> Result<()> {
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(
                self.wrong(format!("rows inside its {}", self.rows()), format!("rows {rows:?}"))
            );
        }
        match rows.len() * size == room {
            true => Ok(()),
            false => {
                let expected =
                    format!("room for {} {unit}, those of rows {rows:?}", rows.len() * size);
                Err(self.wrong(expected, format!("room for {room}")))
            }
        }
    }

    pub(crate) fn wrong(&self, expected: String, got: String) -> Error {
        Fault::tensor(self.name, expected, got).at(&self.source.path)
    }
}
