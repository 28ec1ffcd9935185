//! Rows of matrices on disk.

use std::path::PathBuf;

use half::{bf16, f16};
use polydraft_gguf::TensorType;
use polydraft_kernels::{Format, ReadBlocks, ReadRows};

use super::codebook::Codebook;
use super::element::Element;
use super::fp8::Fp8;
use super::gguf::GgufTensor;
use super::mxfp4::Mxfp4;
use super::packed::Packed;
use super::stored;
use super::transposed_matrix::TransposedMatrix;
use crate::error::{Error, Result};

/// Rows of a stored tensor, in the order in which a matrix has them.
pub(super) struct SourceRows {
    pub stored: MatrixSource,
    pub first: usize,
    pub step: usize,
    pub count: usize,
}

impl SourceRows {
    /// Reads rows in runs that are contiguous in the file: `read` gets the first row of a run and
    /// the buffer for it.
    fn read_runs<T>(
        &self,
        first: usize,
        width: usize,
        buffer: &mut [T],
        read: impl Fn(&MatrixSource, usize, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        if self.step == 1 {
            return read(&self.stored, self.first + first, buffer);
        }
        for (row, buffer) in (first..).zip(buffer.chunks_exact_mut(width)) {
            read(&self.stored, self.first + row * self.step, buffer)?;
        }
        Ok(())
    }
}

/// Matrix in a file, in any of the stored forms.
pub(crate) enum MatrixSource {
    Plain(stored::StoredTensor),
    Gguf(GgufTensor),
    Mxfp4(Mxfp4),
    Fp8(Box<Fp8>),
    Packed(Box<Packed>),
    Codebook(Box<Codebook>),
    Transposed(TransposedMatrix),
}

impl MatrixSource {
    /// Reads rows of `columns` values from row `first` on.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        match self {
            Self::Plain(stored) => stored.read(first * columns, values),
            Self::Gguf(stored) => stored.read(first, columns, values),
            Self::Mxfp4(stored) => stored.read(first, columns, values),
            Self::Fp8(stored) => stored.read(first, columns, values),
            Self::Packed(stored) => stored.read(first, columns, values),
            Self::Codebook(stored) => stored.read(first, columns, values),
            Self::Transposed(matrix) => {
                matrix.read(first, columns, values);
                Ok(())
            }
        }
    }

    /// Format that stores the matrix exactly.
    pub fn exact(&self) -> Format {
        match self {
            Self::Plain(stored) => stored.exact(),
            Self::Gguf(stored) => stored.exact(),
            Self::Mxfp4(stored) => stored.exact(),
            // A number of 4 or 9 significant bits times one of up to 24.
            Self::Fp8(_) | Self::Packed(_) | Self::Codebook(_) => Format::F32,
            Self::Transposed(matrix) => matrix.exact(),
        }
    }

    /// Type of the blocks in memory, if the matrix is stored in blocks.
    fn kind(&self) -> Option<TensorType> {
        match self {
            Self::Gguf(stored) => Some(stored.kind().memory_type()),
            Self::Mxfp4(_) => Some(TensorType::MXFP4.memory_type()),
            _ => None,
        }
    }
}

/// Rows of several matrices on disk, one matrix after the other.
pub(crate) struct Rows {
    pub(super) parts: Vec<SourceRows>,
    pub columns: usize,
}

impl Rows {
    /// Number of rows.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| part.count).sum()
    }

    /// Splits the rows into runs that are exact in the same format, with that format.
    pub fn runs_by_format(self) -> Vec<(Format, Self)> {
        let columns = self.columns;
        let mut runs: Vec<(Format, Self)> = Vec::new();
        for part in self.parts {
            let exact = part.stored.exact();
            match runs.last_mut().filter(|(last, _)| *last == exact) {
                Some((_, run)) => run.parts.push(part),
                None => runs.push((exact, Self { parts: vec![part], columns })),
            }
        }
        runs
    }

    /// Reads complete rows from `first` on into `values`.
    pub fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<()> {
        let columns = self.columns;
        self.read_parts(first, columns, values, |stored, first, values| {
            stored.read(first, columns, values)
        })
    }

    /// Splits `buffer`, with `width` entries per row, among the parts that its rows are in.
    fn read_parts<T>(
        &self,
        mut first: usize,
        width: usize,
        mut buffer: &mut [T],
        read: impl Fn(&MatrixSource, usize, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        for part in &self.parts {
            if first < part.count {
                let rows = (part.count - first).min(buffer.len() / width);
                let (part_buffer, later) = buffer.split_at_mut(rows * width);
                part.read_runs(first, width, part_buffer, &read)?;
                buffer = later;
            }
            first = first.saturating_sub(part.count);
        }
        Ok(())
    }
}

impl ReadRows<Error> for &Rows {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<()> {
        self.read(first, values)
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> Result<()> {
        self.read(first, values)
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<()> {
        self.read(first, values)
    }

    fn blocks(&self, kind: TensorType) -> Option<&dyn ReadBlocks<Error>> {
        self.parts.iter().all(|part| part.stored.kind() == Some(kind)).then_some(*self)
    }
}

impl ReadBlocks<Error> for Rows {
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<()> {
        self.read_parts(first, width, bytes, |stored, first, bytes| match stored {
            MatrixSource::Gguf(stored) => stored.blocks(first, bytes),
            MatrixSource::Mxfp4(stored) => stored.blocks(first, bytes),
            // Not reached: `ReadRows::blocks` checks every part.
            _ => Ok(()),
        })
    }

    fn not_finite_error(&self, mut row: usize, got: f32) -> Error {
        for SourceRows { stored, first, step, count } in &self.parts {
            match stored {
                MatrixSource::Gguf(stored) if row < *count => {
                    return stored.not_finite(first + row * step, got);
                }
                MatrixSource::Mxfp4(stored) if row < *count => {
                    return stored.not_finite(first + row * step, got);
                }
                _ => row = row.saturating_sub(*count),
            }
        }
        // Not reached: the row is in one of the parts.
        let problem = format!("expected finite scales, got {got}");
        Error::File { path: PathBuf::new(), problem }
    }
}
