//! A session's output: tokens and pieces of text, and their origin.

use polydraft::Token;

/// Where an emitted token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted, and accepted by the verifier.
    Accepted,
    /// Emitted in place of drafts that were rejected.
    Correction,
    /// Emitted after the last draft, all of which were accepted; also where nothing was drafted.
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
pub struct OutputChunk {
    /// Whole characters.
    pub text: String,
    /// Where it came from.
    pub origin: Origin,
}
