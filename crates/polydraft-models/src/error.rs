//! The one error type of the crate.

use std::fmt;
use std::path::PathBuf;

use crate::precision::Precision;

/// What can go wrong with a model on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a directory nor a GGUF file.
    #[error("{path}: expected a model directory or a .gguf file, got {got}")]
    Directory {
        /// The path that was given.
        path: PathBuf,
        /// What is there.
        got: &'static str,
    },
    /// A file that a model directory needs.
    #[error("{directory}: expected {expected} in this directory, got neither it nor a substitute")]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// The file, or the files of which one would do.
        expected: &'static str,
    },
    /// A file that could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file whose contents make no sense.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected and what was got.
        problem: String,
    },
    /// A tensor that is not what the configuration says.
    #[error("{path}: tensor {tensor}: expected {expected}, got {got}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What the configuration asks for.
        expected: String,
        /// What the file has.
        got: String,
    },
    /// A GGUF file that contradicts the format or itself.
    #[error(transparent)]
    Gguf(#[from] polydraft_gguf::Error),
    /// An error of the tokenizer or the chat template.
    #[error(transparent)]
    Text(#[from] polydraft_text::Error),
    /// A model that does not fit into memory.
    #[error(
        "{directory}: as {precision} this model needs {needed}, of which {available} are \
         free{}", fitting(.fits)
    )]
    Memory {
        /// The model.
        directory: PathBuf,
        /// The weight type that was asked for.
        precision: Precision,
        /// Bytes it would take.
        needed: Bytes,
        /// Bytes there are.
        available: Bytes,
        /// What would fit.
        fits: Vec<(Precision, Bytes)>,
    },
    /// What a draft head asks of its target.
    #[error(transparent)]
    Target(#[from] polydraft_engine::Error),
    /// Numbers that do not fit together, or no memory for the KV cache.
    #[error(transparent)]
    Compute(#[from] polydraft_kernels::Error),
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for polydraft_engine::Error {
    fn from(error: Error) -> Self {
        Self::Model { model: "loaded".to_owned(), source: Box::new(error) }
    }
}

/// A number of bytes, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let bytes = self.0 as f64;
        let (value, unit) = match self.0 {
            0..1_000 => return f.pad(&format!("{} B", self.0)),
            1_000..1_000_000 => (bytes / 1e3, "kB"),
            1_000_000..1_000_000_000 => (bytes / 1e6, "MB"),
            _ => (bytes / 1e9, "GB"),
        };
        f.pad(&format!("{value:.1} {unit}"))
    }
}

fn fitting(fits: &[(Precision, Bytes)]) -> String {
    if fits.is_empty() {
        return "; it would not fit in any precision".to_owned();
    }
    let list: Vec<String> = fits.iter().map(|(p, bytes)| format!("{p} ({bytes})")).collect();
    format!("; what would fit: {}", list.join(", "))
}
