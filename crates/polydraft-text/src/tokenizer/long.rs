//! Early rejection of prompts that exceed any context, before they take memory.
//!
//! Problem: the tokenizer takes about a hundred bytes for each byte of a text, so that a prompt of
//! 50 MB takes gigabytes before it is rejected.
//! Source: ours.
//! Complexity: one encoding of as much text as fits the context, in chunks.
//!
//! 1. A text of at most [`CHUNK`] bytes is encoded at once, which takes little memory.
//! 2. A text with more than [`BYTES_PER_TOKEN`] bytes for each token of the context is rejected by
//!    its size: text like that of training data has more tokens.
//! 3. Otherwise chunks are encoded one by one and their tokens counted. A cut changes the number by
//!    a few tokens; a text is rejected only if it has twice as many as the context.
//! 4. The remaining texts are encoded at once: their size suits the context.

use polydraft::Token;

use super::Tokenizer;
use crate::{Error, Result};

/// Size of texts in bytes that are encoded without further checks.
const CHUNK: usize = 1 << 18;
/// Maximum average number of bytes per token of a long text.
const BYTES_PER_TOKEN: usize = 64;

impl Tokenizer {
    /// Encodes a prompt for a context of `most` tokens, in little memory however long the text is.
    ///
    /// # Errors
    /// Fails as [`encode`](Self::encode), and with [`Error::TooLong`] or [`Error::TooManyBytes`]
    /// for a text that is found too long without encoding all of it. Slightly too long prompts are
    /// returned.
    pub fn encode_within(&self, text: &str, most: usize) -> Result<Vec<Token>> {
        self.check_length(text, most)?;
        self.encode(text)
    }

    /// Encodes like [`encode_within`](Self::encode_within) a text that already contains its special
    /// tokens.
    ///
    /// # Errors
    /// Fails as [`encode_within`](Self::encode_within).
    pub fn encode_plain_within(&self, text: &str, most: usize) -> Result<Vec<Token>> {
        self.check_length(text, most)?;
        self.encode_plain(text)
    }

    /// Encodes a text of any length in chunks: at their boundaries tokens may differ from those of
    /// the full text.
    ///
    /// # Errors
    /// Fails if the tokenizer rejects the text.
    pub fn encode_chunks(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        for chunk in chunks(text) {
            tokens.extend(self.encode_plain(chunk)?);
        }
        Ok(tokens)
    }

    fn check_length(&self, text: &str, most: usize) -> Result<()> {
        if text.len() <= CHUNK {
            return Ok(());
        }
        let (bytes, allowed) = (text.len(), most.saturating_mul(BYTES_PER_TOKEN));
        if bytes > allowed {
            return Err(Error::TooManyBytes { bytes, allowed, most });
        }
        let mut least = 0;
        for chunk in chunks(text) {
            least += self.encode_plain(chunk)?.len();
            if least > most.saturating_mul(2) {
                return Err(Error::TooLong { least: least / 2, most });
            }
        }
        Ok(())
    }
}

/// Splits a text into chunks, after a line break where possible.
fn chunks(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let most = (0..=CHUNK.min(text.len()))
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(text.len());
        let line = text[..most].rfind('\n').filter(|_| most < text.len());
        let (chunk, rest) = text.split_at(line.map_or(most, |at| at + 1));
        text = rest;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_add_up_to_the_text() {
        for text in
            ["".to_owned(), "é".repeat(CHUNK), "a line\n".repeat(CHUNK), "ab".repeat(CHUNK / 2)]
        {
            assert_eq!(chunks(&text).collect::<String>(), text);
            assert!(chunks(&text).all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK));
        }
    }
}
