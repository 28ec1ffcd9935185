//! What can be wrong with a trace, each with the place where it is.

use std::path::{Path, PathBuf};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Contents that are no trace's, or were changed behind its back.
    #[error("{place}: expected {expected}, got {got}")]
    Content {
        /// The file, and in it the tensor, the position, the node.
        place: String,
        /// What should be there.
        expected: String,
        /// What is.
        got: String,
    },
    /// Numbers that make no draft or no law.
    #[error("{place}: {error}")]
    EmittedDistribution {
        /// The file, the position and the node.
        place: String,
        /// What is wrong with them.
        error: polydraft::Error,
    },
    /// A tree that is no part of what was recorded.
    #[error("{asked} is no part of the recorded {recorded}; what is: {fits}")]
    Tree {
        /// What was asked for.
        asked: String,
        /// What was drafted.
        recorded: String,
        /// What can be replayed.
        fits: String,
    },
    /// A trace that was recorded otherwise than what is to be added to it.
    #[error(
        "{}: {field}: recorded with {recorded}, not {got}; a trace holds one way to record",
        path.display(),
    )]
    Other {
        /// The trace.
        path: PathBuf,
        /// The setting that differs.
        field: &'static str,
        /// As recorded.
        recorded: String,
        /// As asked for.
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
        place: impl ToString,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        Self::Content {
            place: place.to_string(),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }
}
