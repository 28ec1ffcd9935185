//! Incremental detokenization.

use polydraft::{Detokenizer, Token};

use crate::{Result, Tokenizer};

/// Detokenizer that emits text as soon as characters are complete.
///
/// The text of a token may depend on the token before it, so a window of tokens is decoded and its
/// new text is emitted. Bytes of an incomplete character wait until it is complete, or until other
/// text follows.
#[derive(Debug, Clone)]
pub struct Stream {
    tokenizer: Tokenizer,
    /// Window of tokens; the text of the first `shown` ones has been emitted completely.
    tokens: Vec<Token>,
    shown: usize,
    /// Emitted text of the window.
    seen: String,
    /// Special tokens whose strings are emitted nevertheless.
    marks: Vec<(Token, String)>,
}

/// Maximum number of tokens that are decoded again with every new one.
const MAX_WINDOW: usize = 16;
/// Number of tokens without a complete character after which their bytes are emitted as they are.
const MAX_PENDING: usize = 64;

impl Tokenizer {
    /// Creates a stream for the text after a prompt, independent of the tokenizer's lifetime.
    pub fn stream(&self, prompt: &[Token]) -> Stream {
        Stream::new(self.clone(), prompt)
    }
}

impl Stream {
    fn new(source: Tokenizer, prompt: &[Token]) -> Self {
        let with_text: Vec<Token> =
            prompt.iter().copied().filter(|t| !source.is_special(*t)).collect();
        // A few tokens determine whether the first new one starts with a space: some tokenizers
        // drop the space at the start of a text. More, if these start inside a character.
        let window = |count: usize| &with_text[with_text.len().saturating_sub(count)..];
        // Decoding errors are reported with the first new token.
        let text = |tokens: &[Token]| source.decode(tokens).unwrap_or_default();
        let is_complete =
            |count: &usize| !text(window(*count)).starts_with(char::REPLACEMENT_CHARACTER);
        let tokens = window([8, 16, 32].into_iter().find(is_complete).unwrap_or(64)).to_vec();
        // If the prompt ends inside a character, its bytes are emitted with the rest of it.
        let mut seen = text(&tokens);
        seen.truncate(seen.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        let mut shown = tokens.len();
        while shown > 0 && text(&tokens[..shown]).ends_with(char::REPLACEMENT_CHARACTER) {
            shown -= 1;
        }
        Self { tokenizer: source, tokens, shown, seen, marks: Vec::new() }
    }

    /// Also emits these strings if they are special tokens: markers that a reader of the text
    /// needs.
    pub fn with_marks<'m>(mut self, marks: impl IntoIterator<Item = &'m str>) -> Self {
        let special = |mark: &str| {
            let token = self.tokenizer.token(mark).filter(|t| self.tokenizer.is_special(*t));
            token.map(|token| (token, mark.to_owned()))
        };
        self.marks = marks.into_iter().filter_map(special).collect();
        self
    }

    /// Returns the new text: all of it if `flush`, else without bytes of an incomplete character.
    fn advance(&mut self, flush: bool) -> Result<String> {
        let all = self.tokenizer.decode(&self.tokens)?;
        // Some tokenizers change earlier bytes if an invalid one follows; text already emitted
        // remains.
        let common = common_prefix(&self.seen, &all);
        let certain = all.trim_end_matches(char::REPLACEMENT_CHARACTER).len().max(common);
        let end = if flush { all.len() } else { certain };
        let new = all[common..end].to_owned();
        if end < all.len() {
            if !new.is_empty() {
                self.seen = all[..end].to_owned();
            }
            return Ok(new);
        }
        if self.tokens.len() > MAX_WINDOW {
            // The window may start after tokens that were emitted completely.
            self.tokens.drain(..self.shown);
            self.seen = self.tokenizer.decode(&self.tokens)?;
        } else {
            self.seen = all;
        }
        self.shown = self.tokens.len();
        Ok(new)
    }
}

/// Returns the length of the common prefix of two strings in bytes, at a character boundary.
fn common_prefix(a: &str, b: &str) -> usize {
    let differs = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b);
    differs.map_or(a.len().min(b.len()), |((at, _), _)| at)
}

impl Detokenizer for Stream {
    fn push(&mut self, token: Token) -> polydraft::Result<String> {
        let failed = |e: crate::Error| polydraft::Error::Text(e.to_string());
        if self.tokenizer.is_special(token) {
            let mark = self.marks.iter().find(|(mark, _)| *mark == token);
            let Some((_, mark)) = mark.cloned() else { return Ok(String::new()) };
            return Ok(self.advance(true).map_err(failed)? + &mark);
        }
        self.tokens.push(token);
        let waiting = self.tokens.len() - self.shown;
        self.advance(waiting >= MAX_PENDING).map_err(failed)
    }

    fn finish(&mut self) -> polydraft::Result<String> {
        self.advance(true).map_err(|e| polydraft::Error::Text(e.to_string()))
    }
}
