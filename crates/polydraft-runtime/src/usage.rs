//! Usage errors: mistakes of the caller's, as opposed to failures.

use std::fmt::{self, Display, Write as _};

/// A request that contradicts itself, or that this build cannot do. The message says what to use
/// instead, in the names of the program's options.
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

/// An error and its causes, each named once: many errors include their cause.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let _ = write!(text, "{}{cause}", if text.is_empty() { "" } else { ": " });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, Result, anyhow};

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("No such file").context("cannot read x: No such file");
        assert_eq!(explain(&error), "cannot read x: No such file");
        let error: Result<()> = Err(anyhow!("inner"));
        assert_eq!(explain(&error.context("outer").unwrap_err()), "outer: inner");
    }
}
