//! Log-probabilities as the two routes write them.
//!
//! Those of alternatives are made as they are written: as JSON values those of a whole vocabulary
//! would take many times the memory of their numbers.

use std::collections::HashSet;
use std::sync::Arc;

use polydraft::Token;
use polydraft_engine::Scored;
use polydraft_text::Tokenizer;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::json;

/// What stands for minus infinity, which JSON does not have.
const LEAST: f64 = -9999.0;

/// A token of a conversation's answer.
#[derive(Serialize)]
struct ChatToken<'a> {
    #[serde(flatten)]
    own: TopToken,
    top_logprobs: Tops<'a>,
}

/// The alternatives of one.
struct Tops<'a> {
    text: &'a Tokenizer,
    naming: Naming,
    top: &'a [(Token, f64)],
}

impl Serialize for Tops<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { text, naming, top: all } = *self;
        serializer
            .collect_seq(all.iter().map(|&(token, logprob)| top(text, naming, token, logprob)))
    }
}

/// A token and its log-probability.
#[derive(Debug, Serialize)]
struct TopToken {
    /// Its string; where it is only a part of a character, its bytes as `\xf0\x9f`.
    token: String,
    /// The natural logarithm of its probability at temperature 1.
    logprob: f64,
    /// Its bytes.
    bytes: Option<Vec<u8>>,
}

/// A token as text.
#[derive(Default)]
struct Named {
    /// Its string, or its bytes written out.
    string: String,
    bytes: Option<Vec<u8>>,
    /// Whether it is whole characters.
    whole: bool,
}

impl Named {
    fn of(text: &Tokenizer, token: Token) -> Self {
        // A token that was decided has a string, or its request has failed already.
        Self::with(text, token, text.decode(&[token]).unwrap_or_default())
    }

    /// A token of a prompt, of which special ones are a part.
    fn of_prompt(text: &Tokenizer, token: Token) -> Self {
        Self::with(text, token, text.decode_all(&[token]).unwrap_or_default())
    }

    fn with(text: &Tokenizer, token: Token, string: String) -> Self {
        if !string.contains(char::REPLACEMENT_CHARACTER) {
            return Self { bytes: Some(string.clone().into_bytes()), string, whole: true };
        }
        match text.token_bytes(token) {
            Some(bytes) => {
                let string = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
                Self { string, bytes: Some(bytes), whole: false }
            }
            None => Self { string, bytes: None, whole: true },
        }
    }

    /// As completions have it.
    fn in_completion(&self) -> String {
        if self.whole { self.string.clone() } else { format!("bytes:{}", self.string) }
    }

    /// How many characters begin with it: a character's other bytes begin none.
    fn characters(&self) -> usize {
        match &self.bytes {
            Some(bytes) => bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count(),
            None => self.string.chars().count(),
        }
    }
}

fn top(text: &Tokenizer, naming: Naming, token: Token, logprob: f64) -> TopToken {
    let Named { string, bytes, .. } = Named::of(text, token);
    let token = if naming == Naming::Id { naming.of(text, token) } else { string };
    TopToken { token, logprob: logprob.max(LEAST), bytes }
}

/// As conversations have them: a list.
pub struct ChatTokens {
    text: Tokenizer,
    naming: Naming,
    scores: Vec<Scored>,
}

/// As conversations have them.
pub fn chat(text: &Tokenizer, naming: Naming, scores: Vec<Scored>) -> ChatTokens {
    ChatTokens { text: text.clone(), naming, scores }
}

impl Serialize for ChatTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { text, naming, scores } = self;
        let naming = *naming;
        serializer.collect_seq(scores.iter().map(|scored| ChatToken {
            own: top(text, naming, scored.token, scored.logprob),
            top_logprobs: Tops { text, naming, top: &scored.top },
        }))
    }
}

/// A token of an answer of llama.cpp's own route.
#[derive(Debug, Serialize)]
pub struct TokenWithId {
    id: Token,
    #[serde(flatten)]
    own: TopToken,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenWithId>>,
}

/// As llama.cpp's own route has them.
pub fn with_ids(text: &Tokenizer, scores: &[Scored]) -> Vec<TokenWithId> {
    let of = |token, logprob, top_logprobs| TokenWithId {
        id: token,
        own: top(text, Naming::String, token, logprob),
        top_logprobs,
    };
    let scored = |scored: &Scored| {
        let all = scored.top.iter().map(|&(token, logprob)| of(token, logprob, None)).collect();
        of(scored.token, scored.logprob, Some(all))
    };
    scores.iter().map(scored).collect()
}

/// A token of such an answer, with its probability in the distribution that was sampled.
#[derive(Debug, Serialize)]
pub struct SampledToken {
    id: Token,
    token: String,
    bytes: Option<Vec<u8>>,
    prob: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_probs: Option<Vec<SampledToken>>,
}

/// The same of scores in the distribution that was sampled.
pub fn sampled_with_ids(text: &Tokenizer, scores: &[Scored]) -> Vec<SampledToken> {
    let of = |token, logprob: f64, top_probs| {
        let Named { string, bytes, .. } = Named::of(text, token);
        SampledToken { id: token, token: string, bytes, prob: logprob.exp(), top_probs }
    };
    let scored = |scored: &Scored| {
        let all = scored.top.iter().map(|&(token, logprob)| of(token, logprob, None)).collect();
        of(scored.token, scored.logprob, Some(all))
    };
    scores.iter().map(scored).collect()
}

/// How log-probabilities name tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// By their strings.
    String,
    /// As `token_id:7`.
    Id,
}

impl Naming {
    fn of(self, text: &Tokenizer, token: Token) -> String {
        match self {
            Self::String => Named::of(text, token).in_completion(),
            Self::Id => self.name(token, &Named::default()),
        }
    }

    fn name(self, token: Token, named: &Named) -> String {
        match self {
            Self::String => named.in_completion(),
            Self::Id => format!("token_id:{token}"),
        }
    }
}

/// As completions have them.
#[derive(Serialize)]
pub struct CompletionTokens {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: TopMaps,
    text_offset: Vec<usize>,
}

/// The alternatives of each token, by their strings.
struct TopMaps {
    text: Tokenizer,
    naming: Naming,
    prompt: Option<Arc<PromptScores>>,
    scores: Vec<Scored>,
}

/// Those of one.
struct TopMap<'a>(&'a TopMaps, &'a Scored);

impl TopMaps {
    /// All tokens with their scores: first the prompt's, if it is echoed, whose first one has none.
    fn all(&self) -> impl Iterator<Item = (Token, Option<&Scored>)> {
        let echoed = self.prompt.iter().flat_map(|prompt| prompt.all());
        echoed.chain(self.scores.iter().map(|scored| (scored.token, Some(scored))))
    }
}

impl Serialize for TopMaps {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.all().map(|(_, scored)| Some(TopMap(self, scored?))))
    }
}

impl Serialize for TopMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(TopMaps { text, naming, .. }, scored) = self;
        // Several tokens may have the same string: the decided one stands for them, or else the
        // likeliest.
        let (mut seen, mut object) = (HashSet::new(), serializer.serialize_map(None)?);
        let own = (scored.token, scored.logprob);
        for (token, logprob) in std::iter::once(own).chain(scored.top.iter().copied()) {
            let name = naming.of(text, token);
            if !seen.contains(&name) {
                object.serialize_entry(&name, &logprob.max(LEAST))?;
                seen.insert(name);
            }
        }
        object.end()
    }
}

/// As completions have them: first of the `prompt`'s tokens, if it is echoed, whose first one has
/// no score. `offset` is where the first one's string begins, in characters, and afterwards where
/// the next will.
pub fn completion(
    text: &Tokenizer,
    naming: Naming,
    prompt: Option<Arc<PromptScores>>,
    scores: Vec<Scored>,
    offset: &mut usize,
) -> CompletionTokens {
    let special = prompt.as_ref().is_some_and(|prompt| prompt.special);
    let of_echo = if special { Named::of_prompt } else { Named::of };
    let echoed = prompt.as_ref().map_or(0, |prompt| 1 + prompt.others.len());
    let top_logprobs = TopMaps { text: text.clone(), naming, prompt, scores };
    let (mut tokens, mut token_logprobs, mut text_offset) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (token, scored)) in top_logprobs.all().enumerate() {
        let name = if number < echoed { of_echo(text, token) } else { Named::of(text, token) };
        tokens.push(naming.name(token, &name));
        token_logprobs.push(scored.map(|scored| scored.logprob.max(LEAST)));
        text_offset.push(*offset);
        *offset += name.characters();
    }
    CompletionTokens { tokens, token_logprobs, top_logprobs, text_offset }
}

/// The scores of a prompt's tokens.
#[derive(Debug)]
pub struct PromptScores {
    /// The first token, which nothing stands before.
    pub first: Token,
    /// Those of the others.
    pub others: Vec<Scored>,
    /// Whether special tokens are a part of its echo.
    pub special: bool,
}

impl PromptScores {
    fn all(&self) -> impl Iterator<Item = (Token, Option<&Scored>)> {
        let others = self.others.iter().map(|scored| (scored.token, Some(scored)));
        std::iter::once((self.first, None)).chain(others)
    }
}

/// vLLM's `prompt_logprobs`: for every token an object by token ids; none for the first.
#[derive(Clone)]
pub struct ById {
    /// Names tokens.
    pub text: Tokenizer,
    /// Of the prompt.
    pub scores: Arc<PromptScores>,
}

/// The object of one token.
struct OneById<'a>(&'a Tokenizer, &'a Scored);

impl Serialize for ById {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.scores.all();
        serializer.collect_seq(all.map(|(_, scored)| Some(OneById(&self.text, scored?))))
    }
}

impl Serialize for OneById<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(text, scored) = self;
        let mut object = serializer.serialize_map(None)?;
        let ranked = scored.top.iter().enumerate();
        let top = ranked.map(|(rank, &(token, logprob))| (token, logprob, Some(rank + 1)));
        // Where it is none of the likeliest, its rank is not known.
        let is_listed = scored.top.iter().any(|(token, _)| *token == scored.token);
        let own = (!is_listed).then_some((scored.token, scored.logprob, None));
        for (token, logprob, rank) in top.chain(own) {
            object.serialize_entry(
                &token,
                &json!({ "logprob": logprob.max(LEAST), "rank": rank,
                    "decoded_token": Named::of(text, token).string }),
            )?;
        }
        object.end()
    }
}
