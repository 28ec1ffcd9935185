//! Token ids as text.

use crate::{Result, Token};

/// A streaming detokenizer: turns token ids into text, one at a time.
pub trait Detokenizer: Send {
    /// Takes the next token; returns the text that is certain by now, in whole characters (it may
    /// be empty).
    ///
    /// # Errors
    /// An id that has no text.
    fn push(&mut self, token: Token) -> Result<String>;

    /// What is left at the end, where bytes that make no character become U+FFFD.
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

/// No text: for callers that need tokens only.
pub struct NoDetokenizer;

impl Detokenizer for NoDetokenizer {
    fn push(&mut self, _: Token) -> Result<String> {
        Ok(String::new())
    }

    fn finish(&mut self) -> Result<String> {
        Ok(String::new())
    }
}
