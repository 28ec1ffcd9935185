//! Usage errors: mistakes in a description, in contrast to failures.

use std::fmt::{self, Write as _};

use crate::message::{Message, OptionName, Wording};

/// A contradictory description, or one that this build does not support. The message suggests an
/// alternative, in each caller's option syntax ([`explain`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usage {
    /// Options that contradict each other, or the files that they refer to.
    Conflict {
        /// Options concerned.
        options: Vec<OptionName>,
        /// Problem and solution.
        message: Message,
    },
    /// An option without effect.
    Unused {
        /// Option concerned.
        option: OptionName,
        /// Problem and solution.
        message: Message,
    },
    /// An invalid value of an option.
    Unknown {
        /// Option concerned.
        option: OptionName,
        /// Problem and solution.
        message: Message,
    },
}

impl Usage {
    /// Creates an error of contradictory options.
    pub fn conflict(options: &[OptionName], message: Message) -> anyhow::Error {
        Self::Conflict { options: options.to_vec(), message }.into()
    }

    /// Creates an error of an option without effect.
    pub fn unused(option: OptionName, message: Message) -> anyhow::Error {
        Self::Unused { option, message }.into()
    }

    /// Creates an error of an invalid value of an option.
    pub fn unknown(option: OptionName, message: Message) -> anyhow::Error {
        Self::Unknown { option, message }.into()
    }

    /// Returns the options concerned.
    pub fn options(&self) -> &[OptionName] {
        match self {
            Self::Conflict { options, .. } => options,
            Self::Unused { option, .. } | Self::Unknown { option, .. } => {
                std::slice::from_ref(option)
            }
        }
    }

    /// Returns the problem and its solution.
    pub fn message(&self) -> &Message {
        match self {
            Self::Conflict { message, .. }
            | Self::Unused { message, .. }
            | Self::Unknown { message, .. } => message,
        }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.message().fmt(f)
    }
}

impl std::error::Error for Usage {}

/// A failure whose message names options, such as one that would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice(pub Message);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Advice {}

/// Formats an error and its causes, each once (many errors include their cause), in the caller's
/// option syntax.
pub fn explain(error: &anyhow::Error, wording: Wording) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let message = match (cause.downcast_ref::<Usage>(), cause.downcast_ref::<Advice>()) {
            (Some(usage), _) => Some(usage.message()),
            (None, advice) => advice.map(|advice| &advice.0),
        };
        let cause = message.map_or_else(|| cause.to_string(), |message| message.render(wording));
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
    use crate::message::{command_line, keyword, message};

    #[test]
    fn formats_each_cause_once() {
        let error = anyhow!("No such file").context("cannot read x: No such file");
        assert_eq!(explain(&error, command_line), "cannot read x: No such file");
        let error: Result<()> = Err(anyhow!("inner"));
        assert_eq!(explain(&error.context("outer").unwrap_err(), command_line), "outer: inner");
    }

    #[test]
    fn formats_options_in_the_callers_syntax() {
        let error = Usage::unused(
            OptionName::DraftLayers,
            message![OptionName::DraftLayers, " is for draft heads"],
        );
        let error = error.context("loading the draft");
        let usage = error.downcast_ref::<Usage>().expect("a usage error below the context");
        assert_eq!(usage.options(), [OptionName::DraftLayers]);
        let command = "loading the draft: --draft-layers is for draft heads";
        assert_eq!(explain(&error, command_line), command);
        assert_eq!(explain(&error, keyword), "loading the draft: draft_layers= is for draft heads");
    }
}
