//! The one error type of the crate.

use std::path::PathBuf;

/// What can go wrong with a model on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory that is none.
    #[error("{path}: expected a model directory, found {found}")]
    Directory {
        /// The path that was given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A file that a model directory needs.
    #[error("{directory}: expected {expected} in this directory, found neither it nor a substitute")]
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
        /// What was expected and what was found.
        problem: String,
    },
    /// A tensor that is not what the configuration says.
    #[error("{path}: tensor {tensor}: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What the configuration asks for.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A tokenizer and a model that do not belong together.
    #[error("{path}: {problem}")]
    Vocabulary {
        /// The tokenizer's file.
        path: PathBuf,
        /// The sizes and the first token that does not fit.
        problem: String,
    },
    /// Text that the tokenizer refused.
    #[error("tokenizing: {0}")]
    Tokenizing(String),
    /// A failure of the tensor library.
    #[error(transparent)]
    Compute(#[from] candle_core::Error),
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
