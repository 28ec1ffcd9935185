//! What tokenizer a file holds, read from `tokenizer.ggml.*` with llama.cpp's defaults.
//!
//! Source: `llama_vocab::impl::load` of llama.cpp (commit 0c1e570). Deviations:
//! 1. Where several tokens could be the one that fills in the middle or ends a turn and no key says
//!    which, llama.cpp takes whichever its hash table has first; here the order is that of the list
//!    of names.
//! 2. Tokens that occur twice, and lists of different lengths, are errors that name them.

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

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenizerKind {
    /// `gpt2`: text is split, its bytes are written as letters, and neighbours are merged in the
    /// order of a list.
    ByteLevel(&'static PreTokenizer),
    /// `llama`: as SentencePiece's BPE does it: neighbours are merged into the token with the
    /// highest score, and what is no token becomes bytes.
    SentencePiece,
    /// `gemma4`: spaces are written as SentencePiece does it, neighbours are merged in the order of
    /// a list, and what is no token becomes bytes.
    Merged,
}

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Not said.
    Undefined,
    /// A piece of text.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Has no text of its own.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Never made.
    Unused,
    /// A byte.
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

/// A tokenizer, borrowed from the metadata.
#[derive(Debug, Clone)]
pub struct TokenizerDescription<'m> {
    /// What it was read from, for errors.
    #[cfg_attr(not(feature = "tokenizers"), allow(dead_code))]
    metadata: &'m Metadata,
    /// How text becomes tokens.
    pub kind: TokenizerKind,
    /// By id. An empty one is `[EMPTY_id]`, as in llama.cpp.
    pub tokens: Vec<Cow<'m, str>>,
    /// By id.
    pub types: Vec<TokenType>,
    /// By id; empty where there are none.
    pub scores: Vec<f32>,
    /// Pairs, the first to be merged first; empty for [`TokenizerKind::SentencePiece`].
    pub merges: Vec<(&'m str, &'m str)>,
    /// Tokens with a role.
    pub special: SpecialTokens,
    /// Tokens that end a text, in ascending order.
    pub end_tokens: Vec<u32>,
    /// Whether [`SpecialTokens::begin`] is put before a text.
    pub add_begin: bool,
    /// Whether [`SpecialTokens::end`] is put after a text.
    pub add_end: bool,
    /// Whether a space is put before a text.
    pub add_space_prefix: bool,
    /// Whether control tokens swallow the white space after them (Phi 3).
    pub strip_right: bool,
    /// The chat template, in Jinja.
    pub chat_template: Option<&'m str>,
    /// Further ones, by name.
    pub named_templates: Vec<(&'m str, &'m str)>,
}

impl<'m> TokenizerDescription<'m> {
    /// Reads the description.
    ///
    /// # Errors
    /// A kind of tokenizer or of splitting that is not known here, by name; lists that are missing,
    /// of the wrong type or of different lengths; tokens that occur twice. The key is named.
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
            other => return Err(metadata.invalid_key(MODEL, "llama, gpt2 or gemma4", shown(other))),
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
                return Err(metadata.invalid_key(SCORES, "one number a token", "no such key"));
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
            types,
            scores,
            merges,
            special,
            end_tokens,
            // As in llama.cpp, whatever such a file says.
            add_begin: flag("add_bos_token", defaults.add_begin)? || kind == TokenizerKind::Merged,
            add_end: flag("add_eos_token", false)?,
            // Where it is given for another kind, llama.cpp reads it and never looks at it.
            add_space_prefix: kind == TokenizerKind::SentencePiece
                && flag("add_space_prefix", true)?,
            strip_right: name.contains("phi-3") || name.contains("phi3"),
            chat_template: metadata.optional(TEMPLATE, |m, key| m.str(key))?,
            named_templates: named_templates(metadata)?,
            tokens,
        })
    }
}

/// What a kind of tokenizer has where no key says otherwise.
pub(crate) struct Defaults {
    begin: Option<u32>,
    end: Option<u32>,
    unknown: Option<u32>,
    add_begin: bool,
}

/// The tokens' ids.
fn ids<'t>(metadata: &Metadata, tokens: &'t [Cow<str>]) -> Result<HashMap<&'t str, u32>> {
    if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
        return Err(metadata.invalid_key(TOKENS, "1 to 4294967295 tokens", tokens.len().to_string()));
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

/// Cuts a list to one value a token; more are allowed, as llama.cpp does.
fn same_length<T>(
    metadata: &Metadata,
    key: &str,
    mut values: Vec<T>,
    tokens: usize,
) -> Result<Vec<T>> {
    if values.len() < tokens {
        return Err(metadata.invalid_key(
            key,
            format!("{tokens} values, one a token"),
            values.len().to_string(),
        ));
    }
    values.truncate(tokens);
    Ok(values)
}

/// The pairs: the first space after the first letter divides them.
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
