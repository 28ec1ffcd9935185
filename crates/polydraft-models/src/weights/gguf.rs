//! Tensors of a GGUF file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use polydraft_gguf::{
    DEQUANTIZED, ExpectedTensor, Gguf, ModelDescription, RopePairs, Tensor, TensorRole, TensorType,
    interleaved, to_memory_type,
};
use polydraft_kernels::Format;

use super::element::{Element, not_finite};
use super::tensor_header::TensorHeader;
use super::tensor_names::{TensorNames, file_name, model_name};
use crate::error::{Error, Result};

/// GGUF file with the tensors of a model.
#[derive(Debug)]
pub(crate) struct GgufFile {
    gguf: Arc<Gguf>,
    /// Tensors whose rows are in the order of [`RopePairs::Neighbours`], with their head size.
    interleaved: BTreeMap<String, usize>,
    /// Names of the tensors that were read; `None` where the description has checked them.
    taken: Option<BTreeSet<String>>,
    /// Names of the tensors in the model and in the file, where they differ.
    names: TensorNames,
}

/// Tensor of the tokens that a draft head can draft, the only integer tensor that is read.
const DRAFT_TOKENS: &str = "d2t";

impl GgufFile {
    /// File whose model is described: checks all tensors.
    pub fn new(gguf: Gguf, description: &ModelDescription) -> Result<Self> {
        description.check_tensors(&gguf)?;
        check_types(&gguf)?;
        let is_rotated =
            |tensor: &ExpectedTensor| matches!(tensor.role, TensorRole::Query | TensorRole::Key);
        let interleaved = match description.rope.pairs {
            RopePairs::Halves => BTreeMap::new(),
            RopePairs::Neighbours => {
                let rotated = description.tensors().into_iter().filter(is_rotated);
                rotated.map(|tensor| (tensor.name, description.key_head)).collect()
            }
        };
        Ok(Self { gguf: Arc::new(gguf), interleaved, taken: None, names: &[] })
    }

    /// File whose tensors' shapes are checked when they are read.
    pub fn unchecked(gguf: Gguf, interleaved: BTreeMap<String, usize>) -> Result<Self> {
        check_types(&gguf)?;
        let taken = Some(BTreeSet::new());
        Ok(Self { gguf: Arc::new(gguf), interleaved, taken, names: &[] })
    }

    /// Sets the names of the tensors in the model and in the file.
    pub fn with_names(mut self, names: TensorNames) -> Self {
        self.names = names;
        self
    }

    fn find(&self, name: &str) -> Option<Tensor<'_>> {
        self.gguf.find(&file_name(self.names, name))
    }

    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.find(name).map(|tensor| tensor.shape())
    }

    /// Reads an integer vector, which files of draft heads may have.
    pub fn integers(&mut self, name: &str, length: usize) -> Result<Vec<i64>> {
        let name = file_name(self.names, name);
        let tensor = self.gguf.tensor(&name)?;
        tensor.expect_shape(&[length])?;
        if tensor.kind() != TensorType::I64 {
            return Err(Error::Tensor {
                path: tensor.path().to_owned(),
                expected: format!("type {}", TensorType::I64),
                got: format!("type {}", tensor.kind()),
                tensor: name,
            });
        }
        let bytes = tensor.read()?;
        if let Some(taken) = &mut self.taken {
            taken.insert(name);
        }
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect())
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub fn is_vector(&self, name: &str) -> bool {
        self.find(name).is_some_and(|tensor| tensor.shape().len() == 1)
    }

    /// Checks that every tensor was read, except those that the predicate allows.
    pub fn check_all_read(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        let Some(taken) = &self.taken else { return Ok(()) };
        let is_unread =
            |name: &str| !taken.contains(name) && !allowed(&model_name(self.names, name));
        match self.gguf.tensors().find(|tensor| is_unread(tensor.name())) {
            None => Ok(()),
            Some(unread) => Err(Error::Tensor {
                path: unread.path().to_owned(),
                tensor: unread.name().to_owned(),
                expected: "no such tensor in a model of this architecture".to_owned(),
                got: format!("one of shape {:?}", unread.shape()),
            }),
        }
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        let paths: BTreeSet<&Path> = self.gguf.tensors().map(|tensor| tensor.path()).collect();
        paths.into_iter().map(Path::to_owned).collect()
    }

    pub fn tensors(&self) -> impl Iterator<Item = TensorHeader> {
        self.gguf.tensors().map(|tensor| TensorHeader {
            name: model_name(self.names, tensor.name()),
            shape: tensor.shape(),
            stored: tensor.kind().to_string(),
            exact: Format::from_tensor_type(tensor.kind()),
        })
    }

    /// Marks a tensor as read and returns it; it must have this shape.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<GgufTensor> {
        let name = file_name(self.names, name);
        self.gguf.tensor(&name)?.expect_shape(shape)?;
        if let Some(taken) = &mut self.taken {
            taken.insert(name.clone());
        }
        let head = self.interleaved.get(&name).copied();
        Ok(GgufTensor { gguf: Arc::clone(&self.gguf), name, head })
    }
}

/// Checks before reading that all tensors have types that can be read.
fn check_types(gguf: &Gguf) -> Result<()> {
    let is_known = |tensor: &Tensor| match tensor.kind() {
        TensorType::I64 => tensor.name() == DRAFT_TOKENS,
        kind => DEQUANTIZED.contains(&kind),
    };
    match gguf.tensors().find(|tensor| !is_known(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(Error::Tensor {
            path: tensor.path().to_owned(),
            tensor: tensor.name().to_owned(),
            expected: format!("type {}", DEQUANTIZED.map(|kind| kind.name()).join(", ")),
            got: format!("type {}", tensor.kind()),
        }),
    }
}

/// Tensor in a GGUF file.
pub(crate) struct GgufTensor {
    gguf: Arc<Gguf>,
    name: String,
    /// Head size, where rows have to be reordered within heads.
    head: Option<usize>,
}

impl GgufTensor {
    fn tensor(&self) -> Result<Tensor<'_>> {
        Ok(self.gguf.tensor(&self.name)?)
    }

    pub fn kind(&self) -> TensorType {
        // `GgufFile::take` has found the tensor.
        self.gguf.find(&self.name).map_or(TensorType::F32, |tensor| tensor.kind())
    }

    pub fn exact(&self) -> Format {
        Format::from_tensor_type(self.kind())
    }

    /// Reads rows of `columns` values from row `first` on. A vector is one row, or rows of one
    /// value where its entries have to be reordered.
    pub fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        let tensor = self.tensor()?;
        match self.head {
            Some(head) if tensor.shape().len() == 1 => {
                let mut all = vec![T::default(); values.len()];
                self.convert(tensor, 0, &mut all)?;
                for (entry, value) in values.iter_mut().enumerate() {
                    *value = all[interleaved(entry, head)];
                }
            }
            Some(head) => {
                for (row, values) in values.chunks_exact_mut(columns).enumerate() {
                    self.convert(tensor, interleaved(first + row, head), values)?;
                }
            }
            None => self.convert(tensor, first, values)?,
        }
        match not_finite(values) {
            None => Ok(()),
            Some((at, got)) => {
                let got = format!("{got} in row {}, column {}", first + at / columns, at % columns);
                Err(self.tensor_error("finite numbers", got))
            }
        }
    }

    /// Reads rows in the file's order.
    fn convert<T: Element>(&self, tensor: Tensor, first: usize, values: &mut [T]) -> Result<()> {
        let rows = first..first + values.len() / tensor.columns();
        // These types may be the requested one, and need no f32 in between.
        match tensor.kind() {
            TensorType::F16 => read_words(tensor, rows, values, T::from_f16),
            TensorType::BF16 => read_words(tensor, rows, values, T::from_bf16),
            TensorType::F32 => read_words(tensor, rows, values, T::from_f32),
            _ => {
                let mut widened = vec![0.0; values.len()];
                tensor.dequantize_rows(rows, &mut widened)?;
                for (value, widened) in values.iter_mut().zip(widened) {
                    *value = T::from_f32(widened.to_le_bytes());
                }
                Ok(())
            }
        }
    }

    /// Reads the blocks of rows from row `first` on, converted to the type that is stored in
    /// memory.
    pub fn blocks(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let tensor = self.tensor()?;
        let (width, kind) = (tensor.row_bytes(), tensor.kind());
        if kind != kind.memory_type() {
            let memory_bytes = tensor.columns() / kind.block() * kind.memory_type().block_bytes();
            let mut blocks = vec![0; bytes.len() / memory_bytes * width];
            self.blocks_of(tensor, first, &mut blocks)?;
            return to_memory_type(kind, &blocks, bytes)
                .map_err(|e| self.tensor_error(&e.expected, e.got));
        }
        self.blocks_of(tensor, first, bytes)
    }

    fn blocks_of(&self, tensor: Tensor, first: usize, bytes: &mut [u8]) -> Result<()> {
        let width = tensor.row_bytes();
        match self.head {
            None => tensor.read_rows(first..first + bytes.len() / width, bytes)?,
            Some(head) => {
                for (row, bytes) in bytes.chunks_exact_mut(width).enumerate() {
                    let row = interleaved(first + row, head);
                    tensor.read_rows(row..row + 1, bytes)?;
                }
            }
        }
        Ok(())
    }

    pub fn not_finite(&self, row: usize, got: f32) -> Error {
        self.tensor_error("finite scales", format!("{got} in row {row}"))
    }

    fn tensor_error(&self, expected: &str, got: String) -> Error {
        let path =
            self.gguf.find(&self.name).map_or(self.gguf.metadata().path(), |tensor| tensor.path());
        Error::Tensor {
            path: path.to_owned(),
            tensor: self.name.clone(),
            expected: expected.to_owned(),
            got,
        }
    }
}

/// Reads rows of a type with one number per word.
fn read_words<T, const N: usize>(
    tensor: Tensor,
    rows: std::ops::Range<usize>,
    values: &mut [T],
    convert: impl Fn([u8; N]) -> T,
) -> Result<()> {
    let mut bytes = vec![0; values.len() * N];
    tensor.read_rows(rows, &mut bytes)?;
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = convert(*bytes);
    }
    Ok(())
}
