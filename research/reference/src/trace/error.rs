//! Errors of a trace, each with its place.

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
    /// Contents that are no trace's, or were changed after recording.
    #[error("{location}: expected {expected}, got {got}")]
    Content {
        /// The file, and in it the tensor, the position, the node.
        location: String,
        /// The expected contents.
        expected: String,
        /// The actual contents.
        got: String,
    },
    /// Numbers that make no draft or no distribution.
    #[error("{location}: {error}")]
    EmittedDistribution {
        /// The file, the position and the node.
        location: String,
        /// The error.
        error: polydraft::Error,
    },
    /// A tree that is no part of what was recorded.
    #[error("{requested} is no part of the recorded {recorded}; what is: {fits}")]
    Tree {
        /// The requested tree.
        requested: String,
        /// The drafted tree.
        recorded: String,
        /// The trees that can be replayed.
        fits: String,
    },
    /// A trace that was recorded with other settings than those to append with.
    #[error(
        "{}: {field}: recorded with {recorded}, not {got}; a trace has one set of settings",
        path.display(),
    )]
    Other {
        /// The trace.
        path: PathBuf,
        /// The setting that differs.
        field: &'static str,
        /// As recorded.
        recorded: String,
        /// As requested.
        got: String,
    },
    /// A verifier that failed, or settings out of range.
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
