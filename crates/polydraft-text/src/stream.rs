//! Tokens to text, as soon as whole characters are there.

use polydraft::{Detokenizer, Token};

use crate::{Result, Tokenizer};

/// Turns tokens into text as soon as whole characters are there.
///
/// A token's text can depend on the one before it, so a window of tokens is decoded, and what is
/// new in it is shown. Bytes that make no character yet wait until they do, or until other
/// text follows them.
#[derive(Debug, Clone)]
pub struct Stream {
    tokenizer: Tokenizer,
    /// The window; its first `shown` tokens have been shown, whole.
    tokens: Vec<Token>,
    shown: usize,
    /// The window's text as far as it has been shown.
    seen: String,
    /// Special tokens whose strings are shown all the same.
    marks: Vec<(Token, String)>,
}

/// Tokens that are decoded again with every new one.
const LONGEST_WINDOW: usize = 16;
/// So many tokens that make no character are a character never more.
const MOST_WAITING: usize = 64;

impl Tokenizer {
    /// A stream of the text after a prompt. It owns what it needs.
    pub fn stream(&self, prompt: &[Token]) -> Stream {
        Stream::new(self.clone(), prompt)
    }
}

impl Stream {
    fn new(source: Tokenizer, prompt: &[Token]) -> Self {
        let with_text: Vec<Token> =
            prompt.iter().copied().filter(|t| !source.is_special(*t)).collect();
        // A few tokens settle whether the first new one brings a space of its own: some tokenizers
        // drop the one that a text begins with. More, if the few begin inside a character.
        let window = |count: usize| &with_text[with_text.len().saturating_sub(count)..];
        // What cannot be decoded is reported with the first new token.
        let text = |tokens: &[Token]| source.decode(tokens).unwrap_or_default();
        let whole = |count: &usize| !text(window(*count)).starts_with(char::REPLACEMENT_CHARACTER);
        let tokens = window([8, 16, 32].into_iter().find(whole).unwrap_or(64)).to_vec();
        // If the prompt ends inside a character, its bytes are shown with the rest of it.
        let mut seen = text(&tokens);
        seen.truncate(seen.trim_end_matches(char::REPLACEMENT_CHARACTER).len());
        let mut shown = tokens.len();
        while shown > 0 && text(&tokens[..shown]).ends_with(char::REPLACEMENT_CHARACTER) {
            shown -= 1;
        }
        Self { tokenizer: source, tokens, shown, seen, marks: Vec::new() }
    }

    /// The same where these strings are shown too if they are special tokens: marks that a reader
    /// of the text needs.
    pub fn with_marks<'m>(mut self, marks: impl IntoIterator<Item = &'m str>) -> Self {
        let special = |mark: &str| {
            let token = self.tokenizer.token(mark).filter(|t| self.tokenizer.is_special(*t));
            token.map(|token| (token, mark.to_owned()))
        };
        self.marks = marks.into_iter().filter_map(special).collect();
        self
    }

    /// What is new; all of it if `whole`, else without bytes that may become a character.
    fn advance(&mut self, whole: bool) -> Result<String> {
        let all = self.tokenizer.decode(&self.tokens)?;
        // Some tokenizers take all bytes back that a wrong one follows; what was shown of them
        // stays.
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
            self.seen = self.tokenizer.decode(&self.tokens)?;
        } else {
            self.seen = all;
        }
        self.shown = self.tokens.len();
        Ok(new)
    }
}

/// Bytes of the characters that two strings begin with alike.
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
        self.advance(waiting >= MOST_WAITING).map_err(failed)
    }

    fn finish(&mut self) -> polydraft::Result<String> {
        self.advance(true).map_err(|e| polydraft::Error::Text(e.to_string()))
    }
}
