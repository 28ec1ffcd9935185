//! What was asked for and cannot be: the caller's mistake, told from what goes wrong by itself.

use std::fmt::{self, Display};

/// A request that contradicts itself, or that this build cannot do. The message says what to ask
/// for instead, in the names of the program's options.
#[derive(Debug)]
pub struct Usage(String);

impl Usage {
    /// An error with this message.
    pub fn error(message: impl Display) -> anyhow::Error {
        Self(message.to_string()).into()
    }
}

impl Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
