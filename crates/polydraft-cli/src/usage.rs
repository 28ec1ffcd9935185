//! Usage errors, as opposed to failures.

use std::fmt::{self, Display};

/// Contradicting or impossible command line. The message names what to type instead.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// Creates an error with this message.
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

/// Returns whether an error is a usage error, of the program or of the library.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || error.is::<polydraft_runtime::Usage>()
}
