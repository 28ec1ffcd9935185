//! Tensors of a model, each read once from its file: of a directory or of a GGUF file.

mod codebook;
mod element;
mod float8;
mod fp8;
mod gguf;
mod mxfp4;
mod packed;
mod packed_tensors;
pub(crate) mod pickle;
mod rows;
mod safetensors;
mod scales;
mod stored;
mod tensor_header;
mod tensor_names;
mod tensor_rows;
mod transpose;
mod transposed_matrix;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polydraft_gguf::{Gguf, MXFP4_BLOCK_SIZE, ModelDescription};

use crate::error::{Error, Result};
use fp8::Fp8;
use mxfp4::Mxfp4;
use packed::Packed;
pub(crate) use rows::Rows;
use rows::{MatrixSource, SourceRows};
use safetensors::TensorFiles;
pub(crate) use stored::{header, read_at};
pub(crate) use tensor_header::TensorHeader;
pub(crate) use tensor_names::TensorNames;
pub(crate) use tensor_rows::{Orientation, TensorRows};
use transposed_matrix::TransposedMatrix;

/// All tensors of a model by name.
///
/// Opening reads the headers only. Reading a tensor copies its bytes to their destination through a
/// small buffer: no weight is in memory twice, and a file that another process truncates causes an
/// ordinary error.
#[derive(Debug)]
pub(crate) enum Weights {
    Directory(TensorFiles),
    Gguf(gguf::GgufFile),
}

impl Weights {
    /// Opens the weights of a model directory.
    pub fn open(directory: &Path) -> Result<Self> {
        TensorFiles::open(directory).map(Self::Directory)
    }

    /// Opens the weights of a GGUF file whose model is described.
    pub fn from_gguf(gguf: Gguf, description: &ModelDescription) -> Result<Self> {
        gguf::GgufFile::new(gguf, description).map(Self::Gguf)
    }

    /// Opens the weights of a GGUF file whose tensors are checked as they are read. `permuted`
    /// names the tensors whose rows are interleaved by head, with the head size.
    pub fn from_family_file(gguf: Gguf, permuted: BTreeMap<String, usize>) -> Result<Self> {
        gguf::GgufFile::unchecked(gguf, permuted).map(Self::Gguf)
    }

    /// Opens the weights of a draft head's GGUF file, whose tensors are read by the names that
    /// directories use.
    pub fn from_head_file(
        gguf: Gguf,
        names: TensorNames,
        permuted: BTreeMap<String, usize>,
    ) -> Result<Self> {
        Ok(Self::Gguf(gguf::GgufFile::unchecked(gguf, permuted)?.with_names(names)))
    }

    /// Whether the weights are in a GGUF file.
    pub fn is_gguf(&self) -> bool {
        matches!(self, Self::Gguf(_))
    }

    /// Files that contain the tensors.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Directory(files) => files.paths(),
            Self::Gguf(file) => file.paths(),
        }
    }

    /// Headers of all tensors.
    pub fn tensors(&self) -> Vec<TensorHeader> {
        match self {
            Self::Directory(files) => files.tensors().collect(),
            Self::Gguf(file) => file.tensors().collect(),
        }
    }

    /// Renames every tensor of a directory.
    pub fn rename(&mut self, rename: impl Fn(&str) -> String) {
        if let Self::Directory(files) = self {
            files.rename(rename);
        }
    }

    /// Shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Self::Directory(files) => files.shape(name).map(<[usize]>::to_vec),
            Self::Gguf(file) => file.shape(name),
        }
    }

    /// Checks that a directory has a tensor of this name and shape; a GGUF file was checked when it
    /// was opened.
    pub fn check_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        match self {
            Self::Directory(files) => files.find(name, shape).map(drop),
            Self::Gguf(_) => Ok(()),
        }
    }

    /// Whether two tensors of a directory have the same bytes; `None` if one is missing.
    pub fn are_same(&self, a: &str, b: &str) -> Result<Option<bool>> {
        match self {
            Self::Directory(files) => files.are_same(a, b),
            Self::Gguf(_) => Ok(None),
        }
    }

    /// Reads a vector of integers.
    pub fn integers(&mut self, name: &str, length: usize) -> Result<Vec<i64>> {
        match self {
            Self::Directory(files) => files.integers(name, length),
            Self::Gguf(file) => file.integers(name, length),
        }
    }

    /// Error about a tensor.
    pub fn tensor_error(&self, tensor: &str, expected: String, got: String) -> Error {
        let path = self.files().into_iter().next().unwrap_or_default();
        Error::Tensor { path, tensor: tensor.to_owned(), expected, got }
    }

    /// Prefixes all names with `prefix`, if none has it: some files leave it out.
    pub fn prepend(&mut self, prefix: &str) {
        if let Self::Directory(files) = self {
            files.prepend(prefix);
        }
    }

    /// Reads a vector of this length.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        self.numbers(name, &[length])
    }

    /// Reads all numbers of a small tensor of this shape.
    pub fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let stored = self.source(name, shape)?;
        let mut values = vec![0.0; shape.iter().product()];
        stored.read(0, shape.last().copied().unwrap_or(1), &mut values)?;
        Ok(values)
    }

    /// Opens matrices of `columns` columns and stacks their rows, so that one product replaces
    /// several.
    pub fn stacked(&mut self, parts: &[TensorRows], columns: usize) -> Result<Rows> {
        let mut rows = Rows { parts: Vec::new(), columns };
        for part in parts {
            let (stored, first) = match part.orientation {
                Orientation::AsStored => {
                    (self.source(&part.name, &part.shape(columns))?, part.first)
                }
                Orientation::Transposed { from, width } => {
                    self.transposed(part, [from, width], columns)?
                }
            };
            rows.parts.push(SourceRows { stored, first, step: part.step, count: part.count });
        }
        Ok(rows)
    }

    /// Opens a matrix whose rows are columns of its tensor; returns it with the first row that is
    /// needed.
    fn transposed(
        &mut self,
        part: &TensorRows,
        [from, width]: [usize; 2],
        columns: usize,
    ) -> Result<(MatrixSource, usize)> {
        if let (Self::Directory(files), [count, _]) = (&mut *self, &part.dims[..])
            && let Some([numbers, scales]) = files.mxfp4(&part.name, &[*count, width, columns])?
        {
            // MXFP4 tensors are stored transposed already.
            let stored = Mxfp4 { numbers, scales, blocks: columns / MXFP4_BLOCK_SIZE };
            return Ok((MatrixSource::Mxfp4(stored), from / columns * width + part.first));
        }
        let stored = self.source(&part.name, &part.shape(columns))?;
        let mut values = vec![0f32; columns * width];
        stored.read(from, width, &mut values)?;
        Ok((
            MatrixSource::Transposed(TransposedMatrix::new(&values, width, stored.exact())),
            part.first,
        ))
    }

    /// Opens a tensor of this shape in whatever form it is stored.
    fn source(&mut self, name: &str, shape: &[usize]) -> Result<MatrixSource> {
        match self {
            Self::Directory(files) => {
                if let Some(parts) = files.packed(name, shape)? {
                    return Ok(MatrixSource::Packed(Box::new(Packed::new(parts)?)));
                }
                if let Some(parts) = files.codebook(name, shape)? {
                    return parts.open();
                }
                match files.fp8(name, shape)? {
                    Some(scaled) => Ok(MatrixSource::Fp8(Box::new(Fp8::new(scaled, shape)?))),
                    None => files.take(name, shape).map(MatrixSource::Plain),
                }
            }
            Self::Gguf(file) => file.take(name, shape).map(MatrixSource::Gguf),
        }
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(files) => files.shape(name).is_some(),
            Self::Gguf(file) => file.has(name),
        }
    }

    /// Whether a tensor has one dimension, as some files store a matrix of one row.
    pub fn is_vector(&self, name: &str) -> bool {
        match self {
            Self::Directory(files) => files.shape(name).is_some_and(|shape| shape.len() == 1),
            Self::Gguf(file) => file.is_vector(name),
        }
    }

    /// Drops the tensors whose names satisfy the predicate.
    pub fn drop_tensors(&mut self, is_dropped: impl Fn(&str) -> bool) {
        if let Self::Directory(files) = self {
            files.drop_tensors(is_dropped);
        }
    }

    /// Checks that every tensor was read, except those that the predicate allows.
    pub fn check_all_read(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        match self {
            Self::Directory(files) => files.check_all_read(allowed),
            Self::Gguf(file) => file.check_all_read(allowed),
        }
    }
}
