//! Output of a session: tokens and chunks of text, and their origin.

use polydraft::Token;

/// Origin of an emitted token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Drafted, and accepted by the verifier.
    Accepted,
    /// Emitted in place of rejected drafts.
    Correction,
    /// Emitted after the last draft when all were accepted, or when nothing was drafted.
    Bonus,
}

/// A decided token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitted {
    /// Token id.
    pub token: Token,
    /// Origin of the token.
    pub origin: Origin,
}

/// A chunk of output text, and the origin of the token that completed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    /// Complete characters.
    pub text: String,
    /// Origin of the token that completed the chunk.
    pub origin: Origin,
}
