//! Constrained decoding: JSON schemas, tool calls and grammars as a mask of the target's
//! distribution at every node.
//!
//! Problem: the output must match a grammar, and otherwise keep the target's distribution: at each
//! position the tokens that cannot continue it are forbidden, and the others share their
//! probability.
//! Source: masks of the library llguidance, which keeps an Earley parser over the tokenizer's
//! bytes.
//! Method: 1. one matcher follows the decided tokens; 2. at a node of the draft tree a copy of it
//! consumes the tokens of the path, and its mask is the node's (copies share the lexer's automaton,
//! which all sequences of a request extend, and which is much larger than the copied state); 3. the
//! mask is a function of the tokens before the node alone, so every verifier is exact for the
//! masked target; 4. where the next bytes are certain, the mask leaves one token, as the tokenizer
//! encodes them: such tokens need no pass ([`LogitsProcessor::forced`]). After a drafted token that
//! the grammar forbids nothing is masked: the target never continues there, so its distribution has
//! no meaning.
//! Complexity: a copy of the parser and a mask for each node that is sampled from or verified.
//! Deviations: numbers in JSON end after a hundred digits in a row ([`digits`]).

mod calls;
mod counts;
mod digits;
mod form;
mod gbnf;
mod literal;
mod marks;
mod mask;
mod names;
mod nested;
mod parameters;
mod parts;
mod patterns;
mod references;
mod schema;
mod shapes;
mod standard;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory, token_bytes_from_tokenizer_json};
use polydraft::Token;
use polydraft_text::Tokenizer;
use serde_json::Value;

use digits::Digits;

pub use calls::CallGrammar;
pub use form::Form;
pub use marks::Marks;
pub use mask::{Grammar, Mask};

/// Builds grammars for one tokenizer and its end tokens.
pub struct Grammars {
    factory: ParserFactory,
    digits: Arc<Digits>,
}

/// Number of certain bytes in which the next token is searched.
const MAX_BYTES_AHEAD: usize = 256;

/// The tokenizer, as the library requires it.
struct Tokens {
    trie: TokTrie,
    tokenizer: Option<Tokenizer>,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Tokenizes as in training if that decodes to the same bytes: some tokenizers prepend a space.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        if let Some((start, token, end)) = special_token(bytes) {
            let before = self.tokenize_bytes(&bytes[..start]);
            return [before, vec![token], self.tokenize_bytes(&bytes[end..])].concat();
        }
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.as_ref()?.encode_plain(text).ok());
        let tokens = tokens.filter(|tokens| self.trie.decode_raw(tokens) == bytes);
        tokens.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    /// Tokenizes the first bytes only: a mask takes one token, while the certain bytes may be as
    /// long as a schema's longest string. All returned tokens count as final, so that the library
    /// does not search for continuations at the cut.
    fn tokenize_bytes_marker(&self, bytes: &[u8]) -> (Vec<TokenId>, usize) {
        let max_bytes = MAX_BYTES_AHEAD.max(2 * self.trie.max_token_len());
        if bytes.len() <= max_bytes {
            return (self.tokenize_bytes(bytes), 0);
        }
        // Start of a character.
        let cut = (0..4)
            .map(|back| max_bytes - back)
            .find(|at| bytes[*at] & 0xc0 != 0x80)
            .unwrap_or(max_bytes);
        let tokens = self.tokenize_bytes(&bytes[..cut]);
        let settled = tokens.len();
        (tokens, settled)
    }
}

/// First special token in bytes, as the library writes them: a marker and the id in brackets.
/// Returns its start, its id and its end.
fn special_token(bytes: &[u8]) -> Option<(usize, TokenId, usize)> {
    let mut from = 0;
    loop {
        let start =
            from + bytes[from..].iter().position(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER)?;
        let id = bytes[start + 1..].strip_prefix(b"[");
        let digits = id.and_then(|id| id.iter().position(|byte| !byte.is_ascii_digit()));
        if let (Some(id), Some(digits)) = (id, digits)
            && id[digits] == b']'
            && let Some(token) =
                std::str::from_utf8(&id[..digits]).ok().and_then(|id| id.parse().ok())
        {
            return Some((start, token, start + digits + 3));
        }
        from = start + 1;
    }
}

impl Grammars {
    /// Creates a builder for this tokenizer and these end tokens.
    ///
    /// # Errors
    /// A tokenizer whose tokens have unknown bytes; no end token.
    pub fn new(
        tokenizer: &Tokenizer,
        vocabulary: usize,
        end_tokens: &[Token],
    ) -> Result<Self, String> {
        let json = tokenizer.to_json().map_err(|error| error.to_string())?;
        let json: Value = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        // The library panics on some tokenizers.
        let bytes = catch_unwind(|| token_bytes_from_tokenizer_json(&json));
        let bytes = bytes.map_err(|_| "unsupported kind of tokenizer".to_owned())?;
        let bytes = bytes.map_err(|error| error.to_string())?;
        Self::from_token_bytes(bytes, Some(tokenizer.clone()), vocabulary, end_tokens)
    }

    /// Creates a builder from the bytes of every token.
    fn from_token_bytes(
        mut bytes: Vec<Vec<u8>>,
        tokenizer: Option<Tokenizer>,
        vocabulary: usize,
        end_tokens: &[Token],
    ) -> Result<Self, String> {
        let Some(&end) = end_tokens.first() else {
            return Err("this model has no end token".to_owned());
        };
        bytes.resize(vocabulary, Vec::new());
        for &token in end_tokens {
            // An end token is not part of the output, whatever its string.
            if let Some(bytes) =
                bytes.get_mut(token as usize).filter(|bytes| bytes.first() != Some(&0xff))
            {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, end), &bytes)
            .with_eos_tokens(end_tokens);
        let digits = Arc::new(Digits::new(&trie));
        let environment: TokEnv = Arc::new(Tokens { trie, tokenizer });
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(Self { factory, digits })
    }

    /// Builds the grammar of a form.
    ///
    /// # Errors
    /// A schema that is invalid, too large, or has unsupported parts.
    pub fn build(&self, form: Form) -> Result<Grammar, String> {
        let param = form.param;
        let digits = form.is_json().then(|| self.digits.clone());
        let built = catch_unwind(AssertUnwindSafe(|| {
            let mut matcher = Matcher::new(self.factory.create_parser(form.into_library_grammar()));
            match matcher.get_error() {
                Some(error) => Err(without_grammar(error)),
                None => matcher
                    .compute_mask_or_eos()
                    .map(|_| matcher)
                    .map_err(|error| error.to_string()),
            }
        }));
        let matcher =
            built.map_err(|_| "the grammar library failed on this schema".to_owned())??;
        Ok(Grammar { matcher, param, digits })
    }
}

/// An error of the library in a schema, without the grammar that contains it.
fn without_grammar(error: String) -> String {
    let in_schema = error.split_once("failed to compile JSON schema: ");
    let line = in_schema.and_then(|(_, problem)| problem.lines().next()).map(str::to_owned);
    line.unwrap_or(error)
}

#[cfg(test)]
mod call_tests;
#[cfg(test)]
mod tests;
