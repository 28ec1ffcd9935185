//! The result of a request, and its finish reason.

use polydraft::Token;

use crate::{Scored, Statistics};

/// The finish reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Finish {
    /// The model emitted an end token.
    #[serde(rename = "end-token")]
    End,
    /// A stop string appeared.
    #[serde(rename = "stop-string")]
    Stop,
    /// The limit on tokens was reached.
    #[serde(rename = "max-tokens")]
    MaxTokens,
    /// The context is full.
    #[serde(rename = "context")]
    Context,
    /// The caller wanted no more.
    #[serde(rename = "stopped")]
    Stopped,
}

/// A finished generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Its text, up to the stop string if there was one.
    pub text: String,
    /// The tokens decided, up to the one that ended the sequence.
    pub tokens: Vec<Token>,
    /// Why it ended.
    pub finish: Finish,
    /// Scores of the tokens, where they were recorded and not taken before.
    pub scores: Vec<Scored>,
    /// What it cost.
    pub statistics: Statistics,
}
