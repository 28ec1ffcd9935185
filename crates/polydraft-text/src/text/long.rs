//! Prompts that no context can hold, refused before they take memory.
//!
//! Problem: the tokenizer takes about a hundred bytes for each byte of a text, so that a prompt of
//! 50 MB takes gigabytes, to be refused in the end.
//! Source: ours.
//! Complexity: one encoding of as much text as the context could hold, a piece at a time.
//!
//! 1. A text of at most [`PIECE`] bytes is encoded as a whole: that takes little.
//! 2. One with more than [`TOKEN`] bytes for each token of the context is refused by its length: no
//!    text that a model was trained on is like that.
//! 3. Else pieces are encoded one by one and their tokens counted. A cut adds or takes a few
//!    tokens; a text is refused only where there are twice as many as the context holds.
//! 4. What is left is encoded as a whole: a text that a context of this size is for.

use polydraft::Token;

use super::Tokenizer;
use crate::{Error, Result};

/// Bytes that are encoded at once without a second thought.
const PIECE: usize = 1 << 18;
/// Bytes that a token of a long text may stand for, on average.
const TOKEN: usize = 64;

impl Tokenizer {
    /// The tokens of a prompt for a model whose context holds `most` tokens, in little memory
    /// however long the text is.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode); [`Error::TooLong`] and [`Error::TooManyBytes`] for a text
    /// that is seen to be too long without encoding all of it. One that has a few too many is left
    /// to whoever uses the tokens.
    pub fn encode_within(&self, text: &str, most: usize) -> Result<Vec<Token>> {
        self.check_length(text, most)?;
        self.encode(text)
    }

    /// The same for a text that has its special tokens already.
    ///
    /// # Errors
    /// As for [`encode_within`](Self::encode_within).
    pub fn encode_plain_within(&self, text: &str, most: usize) -> Result<Vec<Token>> {
        self.check_length(text, most)?;
        self.encode_plain(text)
    }

    /// The tokens of a text of any length, a piece at a time: where pieces meet they may differ
    /// from those of the whole.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode_pieces(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        for piece in pieces(text) {
            tokens.extend(self.encode_plain(piece)?);
        }
        Ok(tokens)
    }

    fn check_length(&self, text: &str, most: usize) -> Result<()> {
        if text.len() <= PIECE {
            return Ok(());
        }
        let (bytes, allowed) = (text.len(), most.saturating_mul(TOKEN));
        if bytes > allowed {
            return Err(Error::TooManyBytes { bytes, allowed, most });
        }
        let mut least = 0;
        for piece in pieces(text) {
            least += self.encode_plain(piece)?.len();
            if least > most.saturating_mul(2) {
                return Err(Error::TooLong { least: least / 2, most });
            }
        }
        Ok(())
    }
}

/// A text in pieces, cut after a line if there is one.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let most = (0..=PIECE.min(text.len()))
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(text.len());
        let line = text[..most].rfind('\n').filter(|_| most < text.len());
        let (piece, rest) = text.split_at(line.map_or(most, |at| at + 1));
        text = rest;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text() {
        for text in
            ["".to_owned(), "é".repeat(PIECE), "a line\n".repeat(PIECE), "ab".repeat(PIECE / 2)]
        {
            assert_eq!(pieces(&text).collect::<String>(), text);
            assert!(pieces(&text).all(|piece| !piece.is_empty() && piece.len() <= PIECE));
        }
    }
}
