//! The tensors of a model, each read from its file once: of a directory or of a GGUF file.

mod codebook;
mod element;
mod fp8;
mod gguf;
mod listed;
mod memory;
mod mxfp4;
mod narrow;
mod packed;
mod part;
mod parts;
pub(crate) mod pickle;
mod renamed;
mod rows;
mod safetensors;
mod scales;
mod stored;
mod turned;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use polydraft_gguf::{Gguf, MXFP4_NUMBERS, ModelDescription};

use crate::error::{Error, Result};
use fp8::Fp8;
pub(crate) use listed::Listed;
use memory::Memory;
use mxfp4::Mxfp4;
use packed::Packed;
pub(crate) use part::{Lies, Part};
pub(crate) use renamed::OtherNames;
pub(crate) use rows::Rows;
use rows::{Stored, Taken};
use safetensors::Files;
pub(crate) use stored::{header, read_at};

/// All tensors of a model by name.
///
/// Opening reads the headers only. Taking a tensor reads its bytes into their place, by way of a
/// small buffer: no weight is ever in memory twice, and a file that another process cuts short is
/// an error like any other.
#[derive(Debug)]
pub(crate) enum Weights {
    Files(Files),
    Gguf(gguf::File),
}

impl Weights {
    pub fn open(directory: &Path) -> Result<Self> {
        Files::open(directory).map(Self::Files)
    }

    /// Those of a file whose model is described.
    pub fn of_gguf(gguf: Gguf, description: &ModelDescription) -> Result<Self> {
        gguf::File::new(gguf, description).map(Self::Gguf)
    }

    /// Those of a file whose tensors are checked as they are read; of some rows are in another
    /// order, in heads of a width.
    pub fn of_family(gguf: Gguf, permuted: BTreeMap<String, usize>) -> Result<Self> {
        gguf::File::unchecked(gguf, permuted).map(Self::Gguf)
    }

    /// Those of a file of a head, which are asked for by the names that directories have.
    pub fn of_head(
        gguf: Gguf,
        names: OtherNames,
        permuted: BTreeMap<String, usize>,
    ) -> Result<Self> {
        Ok(Self::Gguf(gguf::File::unchecked(gguf, permuted)?.named(names)))
    }

    /// Whether they are those of a GGUF file.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::Gguf(_))
    }

    /// The files that the tensors are in.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Files(files) => files.paths(),
            Self::Gguf(file) => file.paths(),
        }
    }

    /// All tensors that are left.
    pub fn tensors(&self) -> Vec<Listed> {
        match self {
            Self::Files(files) => files.tensors().collect(),
            Self::Gguf(file) => file.tensors().collect(),
        }
    }

    /// Gives every tensor of a directory the name that `rename` makes of its own.
    pub fn rename(&mut self, rename: impl Fn(&str) -> String) {
        if let Self::Files(files) = self {
            files.rename(rename);
        }
    }

    /// The shape of a tensor, if there is one of this name, which in a directory is left.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Self::Files(files) => files.shape(name).map(<[usize]>::to_vec),
            Self::Gguf(file) => file.shape(name),
        }
    }

    /// That a directory has a tensor of this name, of this shape; a GGUF file was checked when it
    /// was opened.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<()> {
        match self {
            Self::Files(files) => files.look(name, shape).map(drop),
            Self::Gguf(_) => Ok(()),
        }
    }

    /// Whether two tensors of a directory have the same bytes, if there are both.
    pub fn are_same(&self, a: &str, b: &str) -> Result<Option<bool>> {
        match self {
            Self::Files(files) => files.are_same(a, b),
            Self::Gguf(_) => Ok(None),
        }
    }

    /// Takes a vector of whole numbers.
    pub fn integers(&mut self, name: &str, length: usize) -> Result<Vec<i64>> {
        match self {
            Self::Files(files) => files.integers(name, length),
            Self::Gguf(file) => file.integers(name, length),
        }
    }

    /// The error of a tensor.
    pub fn wrong(&self, tensor: &str, expected: String, got: String) -> Error {
        let path = self.files().into_iter().next().unwrap_or_default();
        Error::Tensor { path, tensor: tensor.to_owned(), expected, got }
    }

    /// The same tensors under names that begin with `prefix`, where none does: some files leave it
    /// out.
    pub fn prepend(&mut self, prefix: &str) {
        if let Self::Files(files) = self {
            files.prepend(prefix);
        }
    }

    /// Takes a vector of this length.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        self.numbers(name, &[length])
    }

    /// Takes all numbers of a small tensor of this shape.
    pub fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let stored = self.take(name, shape)?;
        let mut values = vec![0.0; shape.iter().product()];
        stored.read(0, shape.last().copied().unwrap_or(1), &mut values)?;
        Ok(values)
    }

    /// Takes matrices of `columns` columns and stacks their rows: one product then does the work of
    /// several.
    pub fn stacked(&mut self, parts: &[Part], columns: usize) -> Result<Rows> {
        let mut rows = Rows { parts: Vec::new(), columns };
        for part in parts {
            let (stored, first) = match part.lies {
                Lies::InRows => (self.take(&part.name, &part.shape(columns))?, part.first),
                Lies::InColumns { from, width } => self.turned(part, [from, width], columns)?,
            };
            rows.parts.push(Taken { stored, first, step: part.step, wanted: part.wanted });
        }
        Ok(rows)
    }

    /// A matrix whose rows are columns of its tensor, and the first row that is wanted.
    fn turned(
        &mut self,
        part: &Part,
        [from, width]: [usize; 2],
        columns: usize,
    ) -> Result<(Stored, usize)> {
        if let (Self::Files(files), [count, _]) = (&mut *self, &part.dims[..])
            && let Some([numbers, scales]) = files.mxfp4(&part.name, &[*count, width, columns])?
        {
            // Not turned there.
            let stored = Mxfp4 { numbers, scales, blocks: columns / MXFP4_NUMBERS };
            return Ok((Stored::Mxfp4(stored), from / columns * width + part.first));
        }
        let stored = self.take(&part.name, &part.shape(columns))?;
        let mut values = vec![0f32; columns * width];
        stored.read(from, width, &mut values)?;
        Ok((Stored::Memory(Memory::turned(&values, width, stored.exact())), part.first))
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Stored> {
        match self {
            Self::Files(files) => {
                if let Some(parts) = files.packed(name, shape)? {
                    return Ok(Stored::Packed(Box::new(Packed::new(parts)?)));
                }
                if let Some(parts) = files.codebook(name, shape)? {
                    return parts.open();
                }
                match files.fp8(name, shape)? {
                    Some(scaled) => Ok(Stored::Fp8(Box::new(Fp8::new(scaled, shape)?))),
                    None => files.take(name, shape).map(Stored::Plain),
                }
            }
            Self::Gguf(file) => file.take(name, shape).map(Stored::Blocked),
        }
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Files(files) => files.shape(name).is_some(),
            Self::Gguf(file) => file.has(name),
        }
    }

    /// Whether a tensor has one dimension: files may have a matrix of one row so.
    pub fn is_vector(&self, name: &str) -> bool {
        match self {
            Self::Files(files) => files.shape(name).is_some_and(|shape| shape.len() == 1),
            Self::Gguf(file) => file.is_vector(name),
        }
    }

    /// Takes all tensors out whose names the predicate says.
    pub fn drop_others(&mut self, others: impl Fn(&str) -> bool) {
        if let Self::Files(files) = self {
            files.drop_others(others);
        }
    }

    /// That nothing is left, but for what the predicate allows.
    pub fn finish(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        match self {
            Self::Files(files) => files.finish(allowed),
            Self::Gguf(file) => file.finish(allowed),
        }
    }
}
