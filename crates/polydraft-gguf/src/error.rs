//! The one error type of the crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// What can go wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that is no file with a length of its own, such as a directory, a pipe or a device.
    #[error("{path}: expected a regular file, got {got}")]
    NotAFile {
        /// The path that was given.
        path: PathBuf,
        /// What is there.
        got: &'static str,
    },
    /// A file that could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that contradicts the format, itself or the one who asks.
    #[error("{path}: {location}: expected {expected}, got {got}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Where in it.
        location: Location,
        /// What would have been right.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A missing shard of a model that is split into several files.
    #[error("{path}: expected shard {shard} of {count}, got no such file")]
    MissingShard {
        /// Path of the shard.
        path: PathBuf,
        /// Number of the shard, from 1.
        shard: usize,
        /// How many there are.
        count: usize,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Location of an error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// The first bytes.
    Header,
    /// A key of the metadata.
    Key(String),
    /// A tensor.
    Tensor(String),
    /// The files of a model in several parts.
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

/// A mistake in a file whose path the caller knows.
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

    pub fn at(self, path: &Path) -> Error {
        Error::Invalid {
            path: path.to_owned(),
            location: self.location,
            expected: self.expected,
            got: self.got,
        }
    }
}

/// A string of the file as an error shows it: on one line, and short even if the file says
/// otherwise.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let escaped: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    match text.chars().nth(LONGEST) {
        None => escaped,
        Some(_) => format!("{escaped}.. ({} bytes)", text.len()),
    }
}
