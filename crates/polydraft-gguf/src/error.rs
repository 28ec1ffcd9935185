//! The error type of the crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// An error of a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a regular file, but for example a directory, a pipe or a device.
    #[error("{path}: expected a regular file, got {got}")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Kind of the file at this path.
        got: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A file that violates the format, is inconsistent, or does not have what the caller
    /// requested.
    #[error("{path}: {location}: expected {expected}, got {got}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Location in the file.
        location: Location,
        /// Expected content.
        expected: String,
        /// Actual content.
        got: String,
    },
    /// A missing shard of a model that is split into several files.
    #[error("{path}: expected shard {shard} of {count}, got no such file")]
    MissingShard {
        /// Path of the shard.
        path: PathBuf,
        /// Number of the shard, from 1.
        shard: usize,
        /// Number of shards.
        count: usize,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Location of an error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// The header.
    Header,
    /// A key of the metadata.
    Key(String),
    /// A tensor.
    Tensor(String),
    /// The shards of a split model.
    Shards,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Key(key) => write!(f, "key {key}"),
            Self::Tensor(name) => write!(f, "tensor {name}"),
            Self::Shards => f.write_str("shards"),
        }
    }
}

/// An [`Error::Invalid`] without the path of the file.
#[derive(Debug)]
pub(crate) struct Fault {
    pub location: Location,
    pub expected: String,
    pub got: String,
}

impl Fault {
    pub fn new(location: Location, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self { location, expected: expected.into(), got: got.into() }
    }

    pub fn header(expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::new(Location::Header, expected, got)
    }

    pub fn key(key: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::new(Location::Key(shown(key)), expected, got)
    }

    pub fn tensor(name: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self::new(Location::Tensor(shown(name)), expected, got)
    }

    /// Fault of a file that ends before what it says it has.
    pub fn incomplete(mut self) -> Self {
        self.got += ": the file is incomplete; fetch it again";
        self
    }

    pub fn at(self, path: &Path) -> Error {
        Error::Invalid {
            path: path.to_owned(),
            location: self.location,
            expected: self.expected,
            got: self.got,
        }
    }
}

/// Escapes and truncates a string of a file for an error message: one short line.
pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let escaped: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    match text.chars().nth(MAX_CHARS) {
        None => escaped,
        Some(_) => format!("{escaped}.. ({} bytes)", text.len()),
    }
}
