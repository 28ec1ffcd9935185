//! Mistakes in a command line, as opposed to failures.

use std::fmt::{self, Display};

/// A command line that contradicts itself, or that asks for something impossible. The message says
/// what to type instead.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// An error with this message.
    pub fn error(message: impl Display) -> anyhow::Error {
        Self(message.to_string()).into()
    }
}

impl Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Whether an error is a mistake in the command line, found by the program or by the library.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || error.is::<polydraft_runtime::Usage>()
}
