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
        let with_text: Vec<Token> = prompt.iter().copied().filter(|t| !self.special.contains(t)).collect();
        // A few tokens settle whether the first new one brings a space of its own: some tokenizers drop the one that a
        // text begins with. More, if the few begin inside a character.
        let window = |count: usize| &with_text[with_text.len().saturating_sub(count)..];
        // What cannot be decoded is reported with the first new token.
        let text = |tokens: &[Token]| self.decode(tokens).unwrap_or_default();
        let whole = |count: &usize| !text(window(*count)).starts_with(char::REPLACEMENT_CHARACTER);
        let tokens = window([8, 16, 32].into_iter().find(whole).unwrap_or(64)).to_vec();
        // If the prompt ends inside a character, its bytes are shown with the rest of it.
        let mut seen = text(&tokens);
        seen.truncate(seen.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        let mut shown = tokens.len();
        while shown > 0 && text(&tokens[..shown]).ends_with(char::REPLACEMENT_CHARACTER) {
            shown -= 1;
        }
        Stream { text: self, tokens, shown, seen }
    }
}

/// Turns tokens into text as soon as whole characters are there.
///
/// A token's text can depend on the one before it, so a window of tokens is decoded, and what is new in it is shown.
/// Bytes that make no character yet are held back until they do, or until other text follows them.
pub struct Stream<'t> {
    text: &'t Text,
    /// The window; its first `shown` tokens have been shown, whole.
    tokens: Vec<Token>,
    shown: usize,
    /// The window's text as far as it has been shown.
    seen: String,
}

/// Tokens that are decoded again with every new one.
const LONGEST_WINDOW: usize = 16;
/// So many tokens that make no character are a character never more.
const MOST_WAITING: usize = 64;

impl Stream<'_> {
    /// What is new; all of it if `whole`, else without bytes that may become a character.
    fn advance(&mut self, whole: bool) -> Result<String> {
        let all = self.text.decode(&self.tokens)?;
        // Some tokenizers take all bytes back that a wrong one follows; what was shown of them stays.
        let common = common_prefix(&self.seen, &all);
        let certain = all.trim_end_matches(char::REPLACEMENT_CHARACTER).len().max(common);
        let end = if whole { all.len() } else { certain };
        let new = all[common..end].to_owned();
        if end < all.len() {
            if !new.is_empty() {
                self.seen = all[..end].to_owned();
            }
            return Ok(new);
        }
        if self.tokens.len() > LONGEST_WINDOW {
            // Where it was shown whole before, a window can begin.
            self.tokens.drain(..self.shown);
            self.seen = self.text.decode(&self.tokens)?;
        } else {
            self.seen = all;
        }
        self.shown = self.tokens.len();
        Ok(new)
    }
}

/// Bytes of the characters that two texts begin with alike.
fn common_prefix(a: &str, b: &str) -> usize {
    let differs = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b);
    differs.map_or(a.len().min(b.len()), |((at, _), _)| at)
}

impl TextStream for Stream<'_> {
    fn push(&mut self, token: Token) -> polydraft_engine::Result<String> {
        if self.text.special.contains(&token) {
            return Ok(String::new());
        }
        self.tokens.push(token);
        let waiting = self.tokens.len() - self.shown;
        self.advance(waiting >= MOST_WAITING).map_err(|e| EngineError::Text(e.to_string()))
    }

    fn finish(&mut self) -> polydraft_engine::Result<String> {
        self.advance(true).map_err(|e| EngineError::Text(e.to_string()))
    }
}
