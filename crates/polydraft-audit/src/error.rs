//! Errors of an audit, as opposed to its findings.

use std::path::PathBuf;

/// Reason why an audit failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached, or does not respond.
    #[error("{url}: {reason}; is the server running, and is this its address?")]
    Unreachable {
        /// Requested URL.
        url: String,
        /// Cause.
        reason: String,
    },
    /// The server rejected a request that every check needs.
    #[error("{url} rejected a request ({status}): {reason}")]
    Refused {
        /// Requested URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// Error message of the server.
        reason: String,
    },
    /// The response is not in the expected format.
    #[error("{url} sent an invalid response: {reason}")]
    Unreadable {
        /// Requested URL.
        url: String,
        /// Cause.
        reason: String,
    },
    /// The server lacks what an audit needs.
    #[error("{0}")]
    Untestable(String),
    /// The file of saved answers cannot be used.
    #[error("{}: {reason}", path.display())]
    Journal {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The listener stopped the audit.
    #[error("interrupted; an audit with saved answers can be resumed")]
    Interrupted,
}

/// Result of fallible functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;
