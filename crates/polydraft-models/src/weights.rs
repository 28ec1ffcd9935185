//! The tensors of a model, each read from its file once: of a directory or of a GGUF file.

mod element;
mod gguf;
mod listed;
pub(crate) mod pickle;
mod safetensors;

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use polydraft_gguf::{Gguf, ModelDescription, TensorType};
use polydraft_kernels::{Blocks, Format, Read};

use crate::error::{Error, Result};
use element::Element;
use gguf::Blocked;
pub(crate) use listed::Listed;
use safetensors::Files;
pub(crate) use safetensors::{header, read_at};

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

/// Rows of a matrix: its name, its rows, and how many of them are wanted, from the first on.
pub(crate) struct Part {
    pub name: String,
    pub rows: usize,
    pub wanted: usize,
}

impl Weights {
    pub fn open(directory: &Path) -> Result<Self> {
        Files::open(directory).map(Self::Files)
    }

    /// Those of a file whose model is described.
    pub fn of_gguf(gguf: Gguf, description: &ModelDescription) -> Result<Self> {
        gguf::File::new(gguf, description).map(Self::Gguf)
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

    /// The shape of a tensor that is left in a directory, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        match self {
            Self::Files(files) => files.shape(name),
            Self::Gguf(_) => None,
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
            Self::Gguf(_) => Err(self.wrong(
                name,
                "a tensor of a directory".to_owned(),
                "a GGUF file".to_owned(),
            )),
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
        let stored = self.take(name, &[length])?;
        let mut values = vec![0.0; length];
        stored.read(0, length, &mut values)?;
        Ok(values)
    }

    /// Takes matrices of `columns` columns and stacks their rows: one product then does the work of
    /// several.
    pub fn stacked(&mut self, parts: &[Part], columns: usize) -> Result<Rows> {
        let mut rows = Rows { parts: Vec::new(), columns };
        for part in parts {
            rows.parts.push((self.take(&part.name, &[part.rows, columns])?, part.wanted));
        }
        Ok(rows)
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Stored> {
        match self {
            Self::Files(files) => files.take(name, shape).map(Stored::Plain),
            Self::Gguf(file) => file.take(name, shape).map(Stored::Blocked),
        }
    }

    /// That nothing is left, but for what the predicate allows.
    pub fn finish(self, allowed: impl Fn(&str) -> bool) -> Result<()> {
        match self {
            Self::Files(files) => files.finish(allowed),
            // Was checked when it was opened.
            Self::Gguf(_) => Ok(()),
        }
    }
}

/// A tensor in its file.
enum Stored {
    Plain(safetensors::Stored),
    Blocked(Blocked),
}

impl Stored {
    /// Reads rows of `columns` values from row `first` on.
    fn read<T: Element>(&self, first: usize, columns: usize, values: &mut [T]) -> Result<()> {
        match self {
            Self::Plain(stored) => stored.read(first * columns, values),
            Self::Blocked(stored) => stored.read(first, columns, values),
        }
    }

    /// In which it loses nothing.
    fn exact(&self) -> Format {
        match self {
            Self::Plain(stored) => stored.exact(),
            Self::Blocked(stored) => stored.exact(),
        }
    }

    /// The type of its blocks, if it is in such.
    fn kind(&self) -> Option<TensorType> {
        match self {
            Self::Plain(_) => None,
            Self::Blocked(stored) => Some(stored.kind()),
        }
    }
}

/// Rows of matrices on disk, one matrix after the other.
pub(crate) struct Rows {
    parts: Vec<(Stored, usize)>,
    pub columns: usize,
}

impl Rows {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|(_, wanted)| wanted).sum()
    }

    /// Runs of neighbours that are exact in the same format, with it.
    pub fn exactly(self) -> Vec<(Format, Self)> {
        let columns = self.columns;
        let mut runs: Vec<(Format, Self)> = Vec::new();
        for part in self.parts {
            let exact = part.0.exact();
            match runs.last_mut().filter(|(last, _)| *last == exact) {
                Some((_, run)) => run.parts.push(part),
                None => runs.push((exact, Self { parts: vec![part], columns })),
            }
        }
        runs
    }

    /// Reads rows from `first` on into `values`, whole rows of them.
    pub fn read<T: Element>(&self, first: usize, values: &mut [T]) -> Result<()> {
        let columns = self.columns;
        self.each(first, columns, values, |stored, first, values| {
            stored.read(first, columns, values)
        })
    }

    /// Shares `room`, of `width` entries a row, out among the parts that its rows are in.
    fn each<T>(
        &self,
        mut first: usize,
        width: usize,
        mut room: &mut [T],
        read: impl Fn(&Stored, usize, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        for (stored, wanted) in &self.parts {
            if first < *wanted {
                let here = (wanted - first).min(room.len() / width);
                let (now, later) = room.split_at_mut(here * width);
                read(stored, first, now)?;
                room = later;
            }
            first = first.saturating_sub(*wanted);
        }
        Ok(())
    }
}

impl Read<Error> for &Rows {
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<()> {
        self.read(first, values)
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> Result<()> {
        self.read(first, values)
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<()> {
        self.read(first, values)
    }

    fn blocks(&self, kind: TensorType) -> Option<&dyn Blocks<Error>> {
        self.parts.iter().all(|(stored, _)| stored.kind() == Some(kind)).then_some(*self)
    }
}

impl Blocks<Error> for Rows {
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<()> {
        self.each(first, width, bytes, |stored, first, bytes| match stored {
            Stored::Blocked(stored) => stored.blocks(first, bytes),
            // Not asked for: `Read::blocks` looks at every part.
            Stored::Plain(_) => Ok(()),
        })
    }

    fn not_finite(&self, mut row: usize, got: f32) -> Error {
        for (stored, wanted) in &self.parts {
            match stored {
                Stored::Blocked(stored) if row < *wanted => return stored.not_finite(row, got),
                _ => row = row.saturating_sub(*wanted),
            }
        }
        // A row of some part was asked about.
        let problem = format!("expected finite scales, got {got}");
        Error::File { path: PathBuf::new(), problem }
    }
}
