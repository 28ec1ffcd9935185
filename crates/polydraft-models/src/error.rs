//! The error type of the crate.

use std::fmt;
use std::path::PathBuf;

use crate::precision::Precision;

/// Errors of loading and running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a directory nor a GGUF file.
    #[error("{path}: expected a model directory or a .gguf file, got {got}")]
    Directory {
        /// The given path.
        path: PathBuf,
        /// Kind of file at that path, if any.
        got: &'static str,
    },
    /// A required file is missing from a model directory.
    #[error("{directory}: expected {expected} in this directory, got neither it nor a substitute")]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// The required file, or the alternatives.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file has invalid contents.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// Description with the expected and the actual value.
        problem: String,
    },
    /// A tensor does not match the configuration.
    #[error("{path}: tensor {tensor}: expected {expected}, got {got}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape, type or values that the configuration requires.
        expected: String,
        /// Shape, type or values in the file.
        got: String,
    },
    /// A GGUF file violates the format or contradicts itself.
    #[error(transparent)]
    Gguf(#[from] polydraft_gguf::Error),
    /// An error of the tokenizer or the chat template.
    #[error(transparent)]
    Text(#[from] polydraft_text::Error),
    /// A model does not fit into memory.
    #[error(
        "{directory}: as {precision} this model needs {needed}, but only {available} are \
         free{}", list_fitting(.fits)
    )]
    Memory {
        /// The model's directory or file.
        directory: PathBuf,
        /// The requested weight type.
        precision: Precision,
        /// Required memory.
        needed: Bytes,
        /// Available memory.
        available: Bytes,
        /// Weight types that would fit, with the memory that each requires.
        fits: Vec<(Precision, Bytes)>,
    },
    /// The target model cannot provide what a draft head needs.
    #[error(transparent)]
    Target(#[from] polydraft_engine::Error),
    /// Shapes do not match, or the KV cache could not be allocated.
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

/// Number of bytes, displayed in B, kB, MB or GB.
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

fn list_fitting(fits: &[(Precision, Bytes)]) -> String {
    if fits.is_empty() {
        return "; no weight type would fit".to_owned();
    }
    let list: Vec<String> = fits.iter().map(|(p, bytes)| format!("{p} ({bytes})")).collect();
    format!("; weight types that would fit: {}", list.join(", "))
}
