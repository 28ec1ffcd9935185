//! The error type of the crate.

use std::collections::TryReserveError;

/// An error of a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Inputs whose shapes do not match.
    #[error("{operation}: expected {expected}, got {got}")]
    Shape {
        /// Name of the operation.
        operation: &'static str,
        /// Expected shape.
        expected: String,
        /// Actual shape.
        got: String,
    },
    /// Not enough memory for the KV cache.
    #[error("memory for the KV cache: {0}")]
    Memory(#[from] TryReserveError),
    /// Another number of threads is already running.
    #[error("threads: expected to start {expected}, got {got} that are already running")]
    Threads {
        /// Requested number of threads.
        expected: usize,
        /// Number of running threads.
        got: usize,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
