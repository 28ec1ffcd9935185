//! What comes of a request: tokens, pieces of text, and why they end.

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

/// Where an emitted token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted, and accepted by the verifier.
    Accepted,
    /// Emitted in place of drafts that were rejected.
    Correction,
    /// Emitted behind the last draft, all of which were accepted; also where nothing was drafted.
    Bonus,
}

/// A decided token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitted {
    /// Its id.
    pub token: Token,
    /// Where it came from.
    pub origin: Origin,
}

/// A piece of text and where the token came from that completed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
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
