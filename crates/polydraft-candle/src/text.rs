//! `tokenizer.json`: text to tokens, and tokens to a stream of text.

mod vocabulary_files;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Error as EngineError, TextStream, Vocabulary};
use tokenizers::{ModelWrapper, Tokenizer};

use crate::{Error, Result};

/// A tokenizer as published with a model.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    path: PathBuf,
    /// Tokens without a text of their own.
    special: HashSet<Token>,
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
        Ok(Self::new(tokenizer, path))
    }

    /// Reads the tokenizer of a model directory: `tokenizer.json` or, as the OPT models have it, `vocab.json` with
    /// `merges.txt`.
    ///
    /// # Errors
    /// Files that are missing, cannot be read or are no tokenizer.
    pub fn of_model(directory: &Path) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        match path.exists() {
            true => Self::read(&path),
            false => vocabulary_files::read(directory),
        }
    }

    fn new(tokenizer: Tokenizer, path: &Path) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Self { tokenizer, path: path.to_owned(), special }
    }

    /// How many tokens there are, added ones included.
    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The kind of algorithm, as `tokenizer.json` names it.
    pub fn kind(&self) -> &'static str {
        match self.tokenizer.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        }
    }

    /// The id of a token, by its string.
    pub fn token(&self, string: &str) -> Option<Token> {
        self.tokenizer.token_to_id(string)
    }

    /// The tokens of a model whose embedding has `rows` rows. Rows beyond the tokenizer's last token, which models have
    /// for the sake of round sizes, are no part of it: they have no text, and two models with one tokenizer may have
    /// different numbers of them.
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
        let used = all.last().map_or(0, |(id, _)| *id as usize + 1);
        let mut tokens: Vec<Option<Box<str>>> = vec![None; used];
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
        self.encode_with(text, true)
    }

    /// The tokens of a text that has its special tokens already, as a chat template writes them.
    ///
    /// # Errors
    /// Text that the tokenizer refuses.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>> {
        self.encode_with(text, false)
    }

    fn encode_with(&self, text: &str, special: bool) -> Result<Vec<Token>> {
        let encoding = self.tokenizer.encode(text, special).map_err(|e| Error::Tokenizing(e.to_string()))?;
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
        // A few tokens with a text settle whether the first new one brings a space of its own: some tokenizers drop
        // the one that a text begins with.
        let with_text = prompt.iter().rev().filter(|token| !self.special.contains(token));
        let mut tokens: Vec<Token> = with_text.take(8).copied().collect();
        tokens.reverse();
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
        if self.text.special.contains(&token) {
            return Ok(String::new());
        }
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
