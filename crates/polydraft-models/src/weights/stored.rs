//! Tensors in safetensors files.
//!
//! Source: the format's description in Hugging Face's safetensors.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use polydraft_kernels::Format;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::element::{Element, not_finite};
use crate::error::{Error, Result};

/// Maximum length of a header; those of the largest models have a few megabytes.
const MAX_HEADER_BYTES: u64 = polydraft_files::FileKind::TENSOR_INDEX.max_bytes;

/// Reads the header of a safetensors file; returns it with the offset of the tensors' bytes.
pub(crate) fn header(path: &Path, file: &mut File) -> Result<(Metadata, u64)> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let length = file.metadata().map_err(read)?.len();
    let invalid = |problem: String| Error::File {
        path: path.to_owned(),
        problem: format!("expected a complete safetensors file, got {length} bytes: {problem}"),
    };
    let mut size = [0; 8];
    if length < 8 {
        return Err(invalid("too few for the size of a header".to_owned()));
    }
    file.read_exact(&mut size).map_err(read)?;
    let header = u64::from_le_bytes(size);
    if header > MAX_HEADER_BYTES.min(length - 8) {
        return Err(invalid(format!("its header has {header} bytes")));
    }
    let mut text = vec![0; header as usize];
    file.read_exact(&mut text).map_err(read)?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| invalid(e.to_string()))?;
    let data = 8 + header;
    let expected = data.saturating_add(metadata.data_len() as u64);
    if expected != length {
        return Err(invalid(format!("its header describes {expected}")));
    }
    Ok((metadata, data))
}

/// Reads bytes of a file from `start` on, through a handle of its own, so that several threads can
/// read at once.
pub(crate) fn read_at(path: &Path, start: u64, bytes: &mut [u8]) -> Result<()> {
    let mut read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(bytes)
    };
    read().map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Format that stores numbers of this type exactly; arbitrary for types that cannot be read.
pub(super) fn exact(dtype: Dtype) -> Format {
    match dtype {
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
        _ => Format::F32,
    }
}

/// Location and type of a tensor in its file.
#[derive(Debug, Clone)]
pub(crate) struct StoredTensor {
    name: String,
    path: PathBuf,
    /// Offset of the first byte.
    start: u64,
    dtype: Dtype,
}

impl StoredTensor {
    /// Tensor of a file whose tensor bytes begin at offset `data`.
    pub fn new(name: &str, path: &Path, data: u64, info: &TensorInfo) -> Self {
        let start = data + info.data_offsets.0 as u64;
        Self { name: name.to_owned(), path: path.to_owned(), start, dtype: info.dtype }
    }

    /// Format that stores the tensor exactly.
    pub fn exact(&self) -> Format {
        exact(self.dtype)
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Error about the tensor.
    pub fn tensor_error(&self, expected: String, got: String) -> Error {
        Error::Tensor { path: self.path.clone(), tensor: self.name.clone(), expected, got }
    }

    /// Reads values from entry `first` on.
    pub fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<()> {
        match self.dtype {
            Dtype::F32 => self.read_as(first, values, T::from_f32),
            Dtype::F16 => self.read_as(first, values, T::from_f16),
            _ => self.read_as(first, values, T::from_bf16),
        }
    }

    fn read_as<T: Element, const N: usize>(
        &self,
        first: usize,
        values: &mut [T],
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<()> {
        let bytes = self.bytes(first, values.len())?;
        for (value, bytes) in values.iter_mut().zip(bytes) {
            *value = convert(bytes);
        }
        match not_finite(values) {
            None => Ok(()),
            Some((at, got)) => Err(self.tensor_error(
                "finite numbers".to_owned(),
                format!("{got} at entry {}", first + at),
            )),
        }
    }

    /// Whether all numbers of the tensor, which has this shape, are 0.
    pub fn is_zero(&self, shape: &[usize]) -> bool {
        let mut values = vec![1f32; shape.iter().product()];
        let is_known = matches!(self.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let is_read = is_known && self.read(0, &mut values).is_ok();
        is_read && values.iter().all(|value| *value == 0.0)
    }

    /// Reads `count` entries of N bytes from entry `first` on.
    pub fn bytes<const N: usize>(&self, first: usize, count: usize) -> Result<Vec<[u8; N]>> {
        let mut bytes = vec![[0; N]; count];
        read_at(&self.path, self.start + (first * N) as u64, bytes.as_flattened_mut())?;
        Ok(bytes)
    }
}
