//! Result of a request, with its finish reason.

use polydraft::Token;

use crate::{Scored, Statistics};

/// Reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Finish {
    /// The model emitted an end token.
    #[serde(rename = "end-token")]
    End,
    /// A stop string appeared.
    #[serde(rename = "stop-string")]
    Stop,
    /// The token limit was reached.
    #[serde(rename = "max-tokens")]
    MaxTokens,
    /// The context is full.
    #[serde(rename = "context")]
    Context,
    /// The caller stopped it.
    #[serde(rename = "stopped")]
    Stopped,
}

/// A finished output.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Output text, up to the stop string if there was one.
    pub text: String,
    /// Decided tokens, up to the one that ended the sequence.
    pub tokens: Vec<Token>,
    /// Reason why the sequence ended.
    pub finish: Finish,
    /// Scores of the tokens, if recorded and not taken before.
    pub scores: Vec<Scored>,
    /// Counts and times of the generation.
    pub statistics: Statistics,
}
