//! Errors of a trace, each with its location.

use std::path::{Path, PathBuf};

/// An error of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Contents that are invalid, or were changed after recording.
    #[error("{location}: expected {expected}, got {got}")]
    Content {
        /// File, tensor, position and node.
        location: String,
        /// The expected contents.
        expected: String,
        /// The actual contents.
        got: String,
    },
    /// Numbers that are not a valid draft or distribution.
    #[error("{location}: {error}")]
    EmittedDistribution {
        /// File, position and node.
        location: String,
        /// The error.
        error: polydraft::Error,
    },
    /// A tree that is not part of the recorded one.
    #[error("{requested} is no part of the recorded {recorded}; what is: {fits}")]
    Tree {
        /// Requested tree.
        requested: String,
        /// Recorded tree.
        recorded: String,
        /// Trees that can be replayed.
        fits: String,
    },
    /// A trace that was recorded with other settings than the ones to append with.
    #[error(
        "{}: {field}: recorded with {recorded}, not {got}; a trace has one set of settings",
        path.display(),
    )]
    Other {
        /// The trace.
        path: PathBuf,
        /// The setting that differs.
        field: &'static str,
        /// Recorded value.
        recorded: String,
        /// Requested value.
        got: String,
    },
    /// Error of a verifier, or settings out of range.
    #[error(transparent)]
    Library(#[from] polydraft::Error),
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn file(path: &Path, error: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }

    pub(crate) fn content(
        location: impl ToString,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        Self::Content {
            location: location.to_string(),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }
}
