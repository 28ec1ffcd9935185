//! Tensors whose names differ from file to file, and tensors of whole numbers.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::tensor::Dtype;

use super::Weights;
use crate::{Error, Result};

impl Weights {
    /// Gives every tensor the name that `rename` makes of its own.
    pub fn rename(&mut self, rename: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
    }

    /// The shape of a tensor that is left, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, info)| info.shape.as_slice())
    }

    /// The file to name where a tensor is wrong.
    pub fn path(&self) -> &Path {
        self.shards.first().map_or(&self.directory, |shard| &shard.path)
    }

    /// Takes a vector of whole numbers.
    pub fn integers(&mut self, name: &str, length: usize) -> Result<Vec<i64>> {
        let Some((shard, info)) = self.tensors.remove(name) else {
            return Err(self.wrong(name, format!("shape [{length}]"), "no tensor of that name".to_owned()));
        };
        let (shape, shard) = (info.shape, &self.shards[shard]);
        if shape != [length] {
            return Err(self.wrong(name, format!("shape [{length}]"), format!("shape {shape:?}")));
        }
        let width = match info.dtype {
            Dtype::I64 => 8,
            Dtype::I32 => 4,
            other => return Err(self.wrong(name, "type I64 or I32".to_owned(), format!("type {other:?}"))),
        };
        let read = |source| Error::Read { path: shard.path.clone(), source };
        let mut bytes = vec![0; length * width];
        let mut file = File::open(&shard.path).map_err(read)?;
        file.seek(SeekFrom::Start(shard.data + info.data_offsets.0 as u64)).map_err(read)?;
        file.read_exact(&mut bytes).map_err(read)?;
        Ok(match width {
            8 => bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
            _ => bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        })
    }

    /// The error of a tensor.
    pub fn wrong(&self, tensor: &str, expected: String, got: String) -> Error {
        Error::Tensor { path: self.path().to_owned(), tensor: tensor.to_owned(), expected, got }
    }
}
