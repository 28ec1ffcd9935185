//! What can go wrong in a kernel.

use std::collections::TryReserveError;

/// What can go wrong in a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Numbers that do not fit together.
    #[error("{operation}: expected {expected}, got {got}")]
    Shape {
        /// What was to be done with them.
        operation: &'static str,
        /// What would fit.
        expected: String,
        /// What was there.
        got: String,
    },
    /// There is no memory for the KV cache.
    #[error("memory for the KV cache: {0}")]
    Memory(#[from] TryReserveError),
    /// Threads that run already.
    #[error("threads to compute with: expected to start {expected}, got {got} that run already")]
    Threads {
        /// How many were asked for.
        expected: usize,
        /// How many there are.
        got: usize,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
