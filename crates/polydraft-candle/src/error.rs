//! The one error type of the crate.

use std::fmt;
use std::path::PathBuf;

use crate::{DeviceName, Precision};

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
    /// A device that is not there.
    #[error("--device {device}: {problem}")]
    Device {
        /// The device.
        device: DeviceName,
        /// Why it cannot be used.
        problem: String,
    },
    /// A model that does not fit into memory.
    #[error(
        "{directory}: as {precision} this model needs {needed}, of which {available} are free{}", fitting(.fits)
    )]
    Memory {
        /// The model.
        directory: PathBuf,
        /// How its weights were to be held.
        precision: Precision,
        /// Bytes it would take.
        needed: Bytes,
        /// Bytes there are.
        available: Bytes,
        /// What would fit.
        fits: Vec<(Precision, Bytes)>,
    },
    /// Text that the tokenizer refused.
    #[error("tokenizing: {0}")]
    Tokenizing(String),
    /// A conversation with a model that was not made for one.
    #[error(
        "{model}: expected a chat template (chat_template.jinja, or chat_template in tokenizer_config.json), found none: \
         this model was not trained for conversations"
    )]
    NoTemplate {
        /// The model.
        model: String,
    },
    /// A chat template that could not be applied.
    #[error("chat template of {directory}: {problem}")]
    Template {
        /// The model.
        directory: PathBuf,
        /// What it objects to, or what is wrong with it.
        problem: String,
    },
    /// A failure of the tensor library.
    #[error(transparent)]
    Compute(#[from] candle_core::Error),
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

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
        return "; no --dtype is small enough".to_owned();
    }
    let list: Vec<String> = fits.iter().map(|(p, bytes)| format!("{p} ({bytes})")).collect();
    format!("; what would fit: --dtype {}", list.join(", "))
}
