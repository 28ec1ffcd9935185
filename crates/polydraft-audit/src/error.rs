//! What can go wrong with an audit, as opposed to what it finds.

use std::path::PathBuf;

/// Why an audit could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached, or does not answer.
    #[error("{url}: {reason}; is the server running, and is this its address?")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why it failed.
        reason: String,
    },
    /// The server refused a request that every check needs.
    #[error("{url} refused a request ({status}): {reason}")]
    Refused {
        /// What was asked.
        url: String,
        /// Its status.
        status: u16,
        /// What the server said.
        reason: String,
    },
    /// The answer is not what the interface promises.
    #[error("{url} answered what cannot be read: {reason}")]
    Unreadable {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server gives nothing to test with.
    #[error("{0}")]
    Untestable(String),
    /// The file of answers cannot be used.
    #[error("{}: {reason}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Somebody asked it to stop.
    #[error("interrupted; one that is saved to a file goes on from there")]
    Interrupted,
}

/// The result of what may fail.
pub type Result<T> = std::result::Result<T, Error>;
