//! What comes of a request in the end, and why it ends.

use polydraft::Token;

use crate::{Scored, Statistics};

/// Why a text ended.
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

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// All of it, up to the stop string if there was one.
    pub text: String,
    /// The tokens decided, up to the one that ended the text.
    pub tokens: Vec<Token>,
    /// Why it ended.
    pub finish: Finish,
    /// Of the tokens, where they were asked for and not taken before.
    pub scores: Vec<Scored>,
    /// What it cost.
    pub statistics: Statistics,
}
