//! Description of a tokenizer, read from `tokenizer.ggml.*` with llama.cpp's defaults.
//!
//! Source: `llama_vocab::impl::load` of llama.cpp (commit 0c1e570). Deviations:
//! 1. If several tokens could be a fill-in-the-middle or end-of-turn token, and no key selects one,
//!    llama.cpp takes the first in the order of its hash table. Here it is the first in the list of
//!    names.
//! 2. Duplicate tokens, and lists of different lengths, are errors.

#[cfg(feature = "tokenizers")]
mod build;
mod pre;
mod special;

pub use pre::PreTokenizer;
pub use special::SpecialTokens;

use std::borrow::Cow;
use std::collections::HashMap;

use crate::Result;
use crate::error::shown;
use crate::metadata::Metadata;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Tokenization algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenizerKind {
    /// `gpt2`: byte-level BPE. Text is split, its bytes are mapped to letters, and adjacent tokens
    /// are merged in the order of a list.
    ByteLevel(&'static PreTokenizer),
    /// `llama`: SentencePiece's BPE. Adjacent tokens are merged into the token with the highest
    /// score, and characters without a token become bytes.
    SentencePiece,
    /// `gemma4`: spaces are replaced as in SentencePiece, adjacent tokens are merged in the order
    /// of a list, and characters without a token become bytes.
    Merged,
}

/// Type of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Unspecified.
    Undefined,
    /// Ordinary text.
    Normal,
    /// Replacement for text without a token.
    Unknown,
    /// Control token, which has no text.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Never produced.
    Unused,
    /// A single byte.
    Byte,
}

impl TokenType {
    fn new(number: i32) -> Self {
        use TokenType::*;
        let all = [Undefined, Normal, Unknown, Control, UserDefined, Unused, Byte];
        usize::try_from(number)
            .ok()
            .and_then(|number| all.get(number))
            .copied()
            .unwrap_or(Undefined)
    }
}

/// Description of a tokenizer.
#[derive(Debug, Clone)]
pub struct TokenizerDescription<'m> {
    /// Metadata of the file, for errors.
    #[cfg_attr(not(feature = "tokenizers"), allow(dead_code))]
    metadata: &'m Metadata,
    /// Tokenization algorithm.
    pub kind: TokenizerKind,
    /// Whether the file names how texts are split before bytes are merged, if they are.
    pub names_splitting: bool,
    /// Tokens by ID. Empty tokens are replaced by `[EMPTY_id]`, as in llama.cpp.
    pub tokens: Vec<Cow<'m, str>>,
    /// Types by ID.
    pub types: Vec<TokenType>,
    /// Scores by ID; empty if the file has none.
    pub scores: Vec<f32>,
    /// Pairs to merge, in order of priority; empty for [`TokenizerKind::SentencePiece`].
    pub merges: Vec<(&'m str, &'m str)>,
    /// Special tokens.
    pub special: SpecialTokens,
    /// Tokens that end the output, in ascending order.
    pub end_tokens: Vec<u32>,
    /// Whether to prepend [`SpecialTokens::begin`].
    pub add_begin: bool,
    /// Whether to append [`SpecialTokens::end`].
    pub add_end: bool,
    /// Whether to prepend a space.
    pub add_space_prefix: bool,
    /// Whether control tokens remove the white space after them (Phi 3).
    pub strip_right: bool,
    /// Chat template, in Jinja.
    pub chat_template: Option<&'m str>,
    /// Further chat templates, by name.
    pub named_templates: Vec<(&'m str, &'m str)>,
}

impl<'m> TokenizerDescription<'m> {
    /// Reads the description.
    ///
    /// # Errors
    /// An unknown tokenization or pre-tokenization algorithm; lists that are missing, of the wrong
    /// type or of different lengths; duplicate tokens. The error reports the key.
    pub fn read(metadata: &'m Metadata) -> Result<Self> {
        let (kind, defaults) = match metadata.str(MODEL)? {
            "llama" => (
                TokenizerKind::SentencePiece,
                Defaults { begin: Some(1), end: Some(2), unknown: Some(0), add_begin: true },
            ),
            "gpt2" => {
                let pre = PreTokenizer::read(metadata)?;
                let (end, add_begin) = (Some(11), pre.add_begin);
                let defaults = Defaults { begin: end, end, unknown: None, add_begin };
                (TokenizerKind::ByteLevel(pre), defaults)
            }
            "gemma4" => {
                let defaults = Defaults { begin: None, end: None, unknown: None, add_begin: true };
                (TokenizerKind::Merged, defaults)
            }
            other => {
                return Err(metadata.invalid_key(MODEL, "llama, gpt2 or gemma4", shown(other)));
            }
        };
        let mut tokens: Vec<Cow<str>> =
            metadata.strings(TOKENS)?.into_iter().map(Cow::Borrowed).collect();
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]").into();
        }
        let ids = ids(metadata, &tokens)?;
        let mut types = match metadata.optional(TYPES, |m, key| m.i32s(key))? {
            Some(types) => same_length(metadata, TYPES, types, tokens.len())?
                .into_iter()
                .map(TokenType::new)
                .collect(),
            None => vec![TokenType::Normal; tokens.len()],
        };
        let scores = match metadata.optional(SCORES, |m, key| m.f32s(key))? {
            Some(scores) => same_length(metadata, SCORES, scores, tokens.len())?,
            None => Vec::new(),
        };
        let merges = match kind {
            TokenizerKind::ByteLevel(_) | TokenizerKind::Merged => merges(metadata)?,
            TokenizerKind::SentencePiece => Vec::new(),
        };
        if kind == TokenizerKind::SentencePiece {
            if let Some(id) = scores.iter().position(|score| score.is_nan()) {
                return Err(metadata.invalid_key(SCORES, "numbers", format!("NaN as number {id}")));
            }
            if scores.is_empty() {
                return Err(metadata.invalid_key(SCORES, "one number per token", "no such key"));
            }
        }
        let (special, end_tokens) = special::read(metadata, &ids, &mut types, &defaults)?;
        let flag = |key: &str, default| {
            let key = format!("tokenizer.ggml.{key}");
            metadata.optional(&key, Metadata::bool).map(|flag| flag.unwrap_or(default))
        };
        let name =
            metadata.optional("general.name", |m, key| m.str(key))?.unwrap_or("").to_lowercase();
        Ok(Self {
            metadata,
            kind,
            names_splitting: !matches!(kind, TokenizerKind::ByteLevel(_)) || metadata.has(PRE),
            types,
            scores,
            merges,
            special,
            end_tokens,
            // As in llama.cpp, which ignores the key for this kind.
            add_begin: flag("add_bos_token", defaults.add_begin)? || kind == TokenizerKind::Merged,
            add_end: flag("add_eos_token", false)?,
            // For other kinds, llama.cpp ignores the key.
            add_space_prefix: kind == TokenizerKind::SentencePiece
                && flag("add_space_prefix", true)?,
            strip_right: name.contains("phi-3") || name.contains("phi3"),
            chat_template: metadata.optional(TEMPLATE, |m, key| m.str(key))?,
            named_templates: named_templates(metadata)?,
            tokens,
        })
    }
}

/// Defaults of a kind of tokenizer.
pub(crate) struct Defaults {
    begin: Option<u32>,
    end: Option<u32>,
    unknown: Option<u32>,
    add_begin: bool,
}

/// Maps tokens to their IDs.
fn ids<'t>(metadata: &Metadata, tokens: &'t [Cow<str>]) -> Result<HashMap<&'t str, u32>> {
    if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
        return Err(metadata.invalid_key(
            TOKENS,
            "1 to 4294967295 tokens",
            tokens.len().to_string(),
        ));
    }
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = ids.insert(&**token, id as u32) {
            let got = format!("\"{}\" as number {first} and {id}", shown(token));
            return Err(metadata.invalid_key(TOKENS, "different tokens", got));
        }
    }
    Ok(ids)
}

/// Truncates a list to one value per token. Longer lists are allowed, as in llama.cpp.
fn same_length<T>(
    metadata: &Metadata,
    key: &str,
    mut values: Vec<T>,
    tokens: usize,
) -> Result<Vec<T>> {
    if values.len() < tokens {
        return Err(metadata.invalid_key(
            key,
            format!("{tokens} values, one per token"),
            values.len().to_string(),
        ));
    }
    values.truncate(tokens);
    Ok(values)
}

/// Reads the pairs to merge. The first space after the first character separates a pair.
fn merges(metadata: &Metadata) -> Result<Vec<(&str, &str)>> {
    let lines = metadata.strings(MERGES)?;
    let mut merges = Vec::with_capacity(lines.len());
    for (number, line) in lines.into_iter().enumerate() {
        let first = line.chars().next().map_or(0, char::len_utf8);
        match line[first..].split_once(' ') {
            Some((left, right)) => merges.push((&line[..first + left.len()], right)),
            None => {
                let got = format!("\"{}\" as number {number}", shown(line));
                return Err(metadata.invalid_key(MERGES, "two tokens with a space between", got));
            }
        }
    }
    Ok(merges)
}

fn named_templates(metadata: &Metadata) -> Result<Vec<(&str, &str)>> {
    let keys = metadata.iter().map(|(key, ..)| key);
    let named = keys.filter_map(|key| Some((key, key.strip_prefix(TEMPLATE)?.strip_prefix('.')?)));
    named.map(|(key, name)| Ok((name, metadata.str(key)?))).collect()
}
