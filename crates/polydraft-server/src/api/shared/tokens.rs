//! Log-probabilities in the forms of the routes.
//!
//! Alternatives are converted while they are written: as JSON values, the alternatives of a full
//! vocabulary would take many times the memory of their numbers.

use std::collections::HashSet;
use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::Scored;
use polydraft_text::Tokenizer;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::json;

/// Stands for minus infinity, which JSON does not have.
const MIN_LOGPROB: f64 = -9999.0;

/// Token of an answer in a conversation.
#[derive(Serialize)]
struct ChatToken<'a> {
    #[serde(flatten)]
    entry_fields: TopToken,
    top_logprobs: TopTokens<'a>,
}

/// Alternatives of a token.
struct TopTokens<'a> {
    tokenizer: &'a Tokenizer,
    naming: Naming,
    top: &'a [(Token, f64)],
}

impl Serialize for TopTokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tokenizer, naming, top: all } = *self;
        serializer.collect_seq(
            all.iter().map(|&(token, logprob)| top_token(tokenizer, naming, token, logprob)),
        )
    }
}

/// A token and its log-probability.
#[derive(Debug, Serialize)]
struct TopToken {
    /// String of the token; if it is only part of a character, its bytes as `\xf0\x9f`.
    token: String,
    /// Natural logarithm of the probability at temperature 1.
    logprob: f64,
    /// Bytes of the token.
    bytes: Option<Vec<u8>>,
}

/// Text of a token.
#[derive(Default)]
struct TokenText {
    /// The string, or escaped bytes.
    string: String,
    bytes: Option<Vec<u8>>,
    /// Whether the token consists of complete characters.
    is_complete: bool,
}

impl TokenText {
    fn new(tokenizer: &Tokenizer, token: Token) -> Self {
        // Decoding of a decided token cannot fail here: the request would have failed before.
        Self::with_string(tokenizer, token, tokenizer.decode(&[token]).unwrap_or_default())
    }

    /// Text of a prompt's token, special tokens included.
    fn in_prompt(tokenizer: &Tokenizer, token: Token) -> Self {
        Self::with_string(
            tokenizer,
            token,
            tokenizer.decode_with_special(&[token]).unwrap_or_default(),
        )
    }

    fn with_string(tokenizer: &Tokenizer, token: Token, string: String) -> Self {
        if !string.contains(char::REPLACEMENT_CHARACTER) {
            return Self { bytes: Some(string.clone().into_bytes()), string, is_complete: true };
        }
        match tokenizer.token_bytes(token) {
            Some(bytes) => {
                let string = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
                Self { string, bytes: Some(bytes), is_complete: false }
            }
            None => Self { string, bytes: None, is_complete: true },
        }
    }

    /// Name of the token in completions.
    fn completion_name(&self) -> String {
        if self.is_complete { self.string.clone() } else { format!("bytes:{}", self.string) }
    }

    /// Number of characters that begin in the token; continuation bytes begin none.
    fn char_starts(&self) -> usize {
        match &self.bytes {
            Some(bytes) => bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count(),
            None => self.string.chars().count(),
        }
    }
}

fn top_token(tokenizer: &Tokenizer, naming: Naming, token: Token, logprob: f64) -> TopToken {
    let TokenText { string, bytes, .. } = TokenText::new(tokenizer, token);
    let token = if naming == Naming::Id { naming.token_name(tokenizer, token) } else { string };
    TopToken { token, logprob: logprob.max(MIN_LOGPROB), bytes }
}

/// Log-probabilities in the form of conversations: a list.
pub struct ChatTokens {
    tokenizer: Tokenizer,
    naming: Naming,
    scores: Vec<Scored>,
}

/// Creates log-probabilities in the form of conversations.
pub fn chat_logprobs(tokenizer: &Tokenizer, naming: Naming, scores: Vec<Scored>) -> ChatTokens {
    ChatTokens { tokenizer: tokenizer.clone(), naming, scores }
}

impl Serialize for ChatTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tokenizer, naming, scores } = self;
        let naming = *naming;
        serializer.collect_seq(scores.iter().map(|scored| ChatToken {
            entry_fields: top_token(tokenizer, naming, scored.token, scored.logprob),
            top_logprobs: TopTokens { tokenizer, naming, top: &scored.top },
        }))
    }
}

/// Token of an answer of llama.cpp's own route.
#[derive(Debug, Serialize)]
pub struct TokenWithId {
    id: Token,
    #[serde(flatten)]
    entry_fields: TopToken,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenWithId>>,
}

/// Log-probabilities in the form of llama.cpp's own route.
pub fn tokens_with_ids(tokenizer: &Tokenizer, scores: &[Scored]) -> Vec<TokenWithId> {
    let entry = |token, logprob, top_logprobs| TokenWithId {
        id: token,
        entry_fields: top_token(tokenizer, Naming::String, token, logprob),
        top_logprobs,
    };
    let scored = |scored: &Scored| {
        let all = scored.top.iter().map(|&(token, logprob)| entry(token, logprob, None)).collect();
        entry(scored.token, scored.logprob, Some(all))
    };
    scores.iter().map(scored).collect()
}

/// Token of an answer of llama.cpp's own route, with its probability in the sampled distribution.
#[derive(Debug, Serialize)]
pub struct SampledToken {
    id: Token,
    token: String,
    bytes: Option<Vec<u8>>,
    prob: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_probs: Option<Vec<SampledToken>>,
}

/// Probabilities in the sampled distribution, in the form of llama.cpp's own route.
pub fn sampled_tokens_with_ids(tokenizer: &Tokenizer, scores: &[Scored]) -> Vec<SampledToken> {
    let entry = |token, logprob: f64, top_probs| {
        let TokenText { string, bytes, .. } = TokenText::new(tokenizer, token);
        SampledToken { id: token, token: string, bytes, prob: logprob.exp(), top_probs }
    };
    let scored = |scored: &Scored| {
        let all = scored.top.iter().map(|&(token, logprob)| entry(token, logprob, None)).collect();
        entry(scored.token, scored.logprob, Some(all))
    };
    scores.iter().map(scored).collect()
}

/// Naming of tokens in log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By string.
    String,
    /// As `token_id:7`.
    Id,
}

impl Naming {
    fn token_name(self, tokenizer: &Tokenizer, token: Token) -> String {
        match self {
            Self::String => TokenText::new(tokenizer, token).completion_name(),
            Self::Id => self.name(token, &TokenText::default()),
        }
    }

    fn name(self, token: Token, named: &TokenText) -> String {
        match self {
            Self::String => named.completion_name(),
            Self::Id => format!("token_id:{token}"),
        }
    }
}

/// Log-probabilities in the form of completions.
#[derive(Serialize)]
pub struct CompletionTokens {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: TopLogprobMaps,
    text_offset: Vec<usize>,
}

/// Alternatives of each token, by name.
struct TopLogprobMaps {
    tokenizer: Tokenizer,
    naming: Naming,
    prompt: Option<Arc<PromptScores>>,
    scores: Vec<Scored>,
}

/// Alternatives of one token.
struct TopLogprobMap<'a>(&'a TopLogprobMaps, &'a Scored);

impl TopLogprobMaps {
    /// All tokens with their scores: first those of an echoed prompt, whose first token has no
    /// score.
    fn all(&self) -> impl Iterator<Item = (Token, Option<&Scored>)> {
        let echoed = self.prompt.iter().flat_map(|prompt| prompt.all());
        echoed.chain(self.scores.iter().map(|scored| (scored.token, Some(scored))))
    }
}

impl Serialize for TopLogprobMaps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.all().map(|(_, scored)| Some(TopLogprobMap(self, scored?))))
    }
}

impl Serialize for TopLogprobMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(TopLogprobMaps { tokenizer, naming, .. }, scored) = self;
        // Several tokens may have the same string: keep the decided one, or else the likeliest.
        let (mut seen, mut object) = (HashSet::new(), serializer.serialize_map(None)?);
        let decided = (scored.token, scored.logprob);
        for (token, logprob) in std::iter::once(decided).chain(scored.top.iter().copied()) {
            let name = naming.token_name(tokenizer, token);
            if !seen.contains(&name) {
                object.serialize_entry(&name, &logprob.max(MIN_LOGPROB))?;
                seen.insert(name);
            }
        }
        object.end()
    }
}

/// Creates log-probabilities in the form of completions, beginning with an echoed `prompt`, whose
/// first token has no score. `offset` is the position of the first token's string in characters,
/// and is advanced past the last.
pub fn completion_logprobs(
    tokenizer: &Tokenizer,
    naming: Naming,
    prompt: Option<Arc<PromptScores>>,
    scores: Vec<Scored>,
    offset: &mut usize,
) -> CompletionTokens {
    let special = prompt.as_ref().is_some_and(|prompt| prompt.special);
    let text_of_echo = if special { TokenText::in_prompt } else { TokenText::new };
    let echoed = prompt.as_ref().map_or(0, |prompt| 1 + prompt.others.len());
    let top_logprobs = TopLogprobMaps { tokenizer: tokenizer.clone(), naming, prompt, scores };
    let (mut tokens, mut token_logprobs, mut text_offset) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (token, scored)) in top_logprobs.all().enumerate() {
        let name = if number < echoed {
            text_of_echo(tokenizer, token)
        } else {
            TokenText::new(tokenizer, token)
        };
        tokens.push(naming.name(token, &name));
        token_logprobs.push(scored.map(|scored| scored.logprob.max(MIN_LOGPROB)));
        text_offset.push(*offset);
        *offset += name.char_starts();
    }
    CompletionTokens { tokens, token_logprobs, top_logprobs, text_offset }
}

/// Scores of a prompt's tokens.
#[derive(Debug)]
pub struct PromptScores {
    /// The first token, which has no score.
    pub first: Token,
    /// Scores of the other tokens.
    pub others: Vec<Scored>,
    /// Whether an echo includes special tokens.
    pub special: bool,
}

impl PromptScores {
    fn all(&self) -> impl Iterator<Item = (Token, Option<&Scored>)> {
        let others = self.others.iter().map(|scored| (scored.token, Some(scored)));
        std::iter::once((self.first, None)).chain(others)
    }
}

/// vLLM's `prompt_logprobs`: an object by token ids for every token; null for the first.
#[derive(Clone)]
pub struct PromptLogprobs {
    /// Tokenizer for the names of tokens.
    pub tokenizer: Tokenizer,
    /// Scores of the prompt.
    pub scores: Arc<PromptScores>,
}

/// Object of one token.
struct TokenLogprobs<'a>(&'a Tokenizer, &'a Scored);

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.scores.all();
        serializer.collect_seq(all.map(|(_, scored)| Some(TokenLogprobs(&self.tokenizer, scored?))))
    }
}

impl Serialize for TokenLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(tokenizer, scored) = self;
        let mut object = serializer.serialize_map(None)?;
        let ranked = scored.top.iter().enumerate();
        let top = ranked.map(|(rank, &(token, logprob))| (token, logprob, Some(rank + 1)));
        // The rank of a token that is not among the likeliest is unknown.
        let is_listed = scored.top.iter().any(|(token, _)| *token == scored.token);
        let decided = (!is_listed).then_some((scored.token, scored.logprob, None));
        for (token, logprob, rank) in top.chain(decided) {
            object.serialize_entry(
                &token,
                &json!({ "logprob": logprob.max(MIN_LOGPROB), "rank": rank,
                    "decoded_token": TokenText::new(tokenizer, token).string }),
            )?;
        }
        object.end()
    }
}
