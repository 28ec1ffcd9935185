//! `tokenizer.json`: text to tokens, and tokens to a stream of text.

use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Error as EngineError, TextStream, Vocabulary};
use tokenizers::Tokenizer;

use crate::{Error, Result};

/// A tokenizer as published with a model.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    path: PathBuf,
}

impl Text {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// A file that cannot be read or is no tokenizer.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| Error::File {
            path: path.to_owned(),
            problem: format!("expected a tokenizer in Hugging Face's format: {e}"),
        })?;
        Ok(Self { tokenizer, path: path.to_owned() })
    }

    /// The tokens of a model whose logits have `rows` entries. Rows beyond the tokenizer's tokens, which models have
    /// for the sake of round sizes, stay without a string.
    ///
    /// # Errors
    /// A token that the model has no row for; so many rows without a token that the two cannot belong together.
    pub fn vocabulary(&self, rows: usize) -> Result<Vocabulary> {
        let wrong = |problem: String| Error::Vocabulary { path: self.path.clone(), problem };
        let mut all: Vec<(u32, String)> =
            self.tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        all.sort();
        if let Some((id, token)) = all.iter().find(|(id, _)| *id as usize >= rows) {
            return Err(wrong(format!(
                "the tokenizer has {} tokens, the model only {rows} rows: token {id} ({token:?}) has none",
                all.len()
            )));
        }
        // Ids are unique, so this is the number of rows without a token.
        if all.is_empty() || rows - all.len() > 1024.max(rows / 8) {
            return Err(wrong(format!(
                "the model has {rows} rows, the tokenizer tokens for only {} of them",
                all.len()
            )));
        }
        let mut tokens: Vec<Option<Box<str>>> = vec![None; rows];
        for (id, token) in all {
            tokens[id as usize] = Some(token.into());
        }
        Ok(Vocabulary::new(tokens))
    }

    /// The tokens of a prompt, with the special ones that the model expects around it.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let encoding = self.tokenizer.encode(text, true).map_err(|e| Error::Tokenizing(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, special ones left out.
    ///
    /// # Errors
    /// Ids that the tokenizer refuses.
    pub fn decode(&self, tokens: &[Token]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|e| Error::Tokenizing(e.to_string()))
    }

    /// A stream of text behind a prompt.
    pub fn stream(&self, prompt: &[Token]) -> Stream<'_> {
        // A few tokens settle whether the first new one brings a space of its own.
        let tokens = prompt[prompt.len().saturating_sub(8)..].to_vec();
        Stream { text: self, shown: tokens.len(), tokens }
    }
}

/// Turns tokens into text as soon as whole characters are there.
///
/// A token's text can depend on the one before it, so a window is decoded with and without the new tokens and the
/// difference shown.
pub struct Stream<'t> {
    text: &'t Text,
    /// Tokens of the window; the first `shown` have been shown.
    tokens: Vec<Token>,
    shown: usize,
}

/// A character has at most four bytes: what is incomplete after so many tokens will stay so.
const LONGEST_CHARACTER: usize = 4;

impl Stream<'_> {
    fn difference(&self) -> Result<String> {
        let before = self.text.decode(&self.tokens[..self.shown])?;
        let mut all = self.text.decode(&self.tokens)?;
        // Bytes that were shown as incomplete cannot be taken back; what follows them can be told apart all the same.
        let start =
            if all.starts_with(&before) { before.len() } else { all.floor_char_boundary(before.len()) };
        Ok(all.split_off(start))
    }

    fn advance(&mut self) {
        self.tokens.drain(..self.shown);
        self.shown = self.tokens.len();
    }
}

impl TextStream for Stream<'_> {
    fn push(&mut self, token: Token) -> polydraft_engine::Result<String> {
        self.tokens.push(token);
        let text = self.difference().map_err(|e| EngineError::Text(e.to_string()))?;
        let waiting = self.tokens.len() - self.shown;
        if text.is_empty() || (text.ends_with(char::REPLACEMENT_CHARACTER) && waiting < LONGEST_CHARACTER) {
            return Ok(String::new());
        }
        self.advance();
        Ok(text)
    }

    fn finish(&mut self) -> polydraft_engine::Result<String> {
        let text = self.difference().map_err(|e| EngineError::Text(e.to_string()))?;
        self.advance();
        Ok(text)
    }
}
