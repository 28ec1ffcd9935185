//! Conversion of token ids to text.

use crate::{Result, Token};

/// A streaming detokenizer: converts token ids to text, one at a time.
pub trait Detokenizer: Send {
    /// Adds the next token; returns the text that is final by now, in complete characters (possibly
    /// empty).
    ///
    /// # Errors
    /// An id without text.
    fn push(&mut self, token: Token) -> Result<String>;

    /// Returns the remaining text, with U+FFFD for bytes that form no character.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    fn finish(&mut self) -> Result<String>;
}

impl<T: Detokenizer + ?Sized> Detokenizer for Box<T> {
    fn push(&mut self, token: Token) -> Result<String> {
        (**self).push(token)
    }

    fn finish(&mut self) -> Result<String> {
        (**self).finish()
    }
}

/// A detokenizer without output, for callers that need tokens only.
pub struct NoDetokenizer;

impl Detokenizer for NoDetokenizer {
    fn push(&mut self, _: Token) -> Result<String> {
        Ok(String::new())
    }

    fn finish(&mut self) -> Result<String> {
        Ok(String::new())
    }
}
