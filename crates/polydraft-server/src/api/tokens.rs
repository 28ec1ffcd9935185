//! Log-probabilities as the two routes write them.

use polydraft::Token;
use polydraft_engine::Scored;
use polydraft_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// What stands for minus infinity, which JSON does not have.
const LEAST: f64 = -9999.0;

/// A token of a conversation's answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatToken {
    #[serde(flatten)]
    own: TopToken,
    top_logprobs: Vec<TopToken>,
}

/// A token and its log-probability.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopToken {
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

/// As conversations have them.
pub fn chat(text: &Tokenizer, naming: Naming, scores: &[Scored]) -> Vec<ChatToken> {
    let of = |scored: &Scored| ChatToken {
        own: top(text, naming, scored.token, scored.logprob),
        top_logprobs: scored
            .top
            .iter()
            .map(|&(token, logprob)| top(text, naming, token, logprob))
            .collect(),
    };
    scores.iter().map(of).collect()
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

/// As completions have them: first of the `prompt`'s tokens, if it is echoed, whose first one has
/// no score. `offset` is where the first one's string begins, in characters, and afterwards where
/// the next will.
pub fn completion(
    text: &Tokenizer,
    naming: Naming,
    prompt: Option<&PromptScores>,
    scores: &[Scored],
    offset: &mut usize,
) -> Value {
    let echoed = prompt.into_iter().flat_map(PromptScores::all);
    let mut all: Vec<(Token, Option<&Scored>)> = echoed.collect();
    let special = prompt.is_some_and(|prompt| prompt.special);
    let of_echo = if special { Named::of_prompt } else { Named::of };
    let of_prompt = all.iter().map(|(token, _)| of_echo(text, *token));
    let mut names: Vec<Named> = of_prompt.collect();
    names.extend(scores.iter().map(|scored| Named::of(text, scored.token)));
    all.extend(scores.iter().map(|scored| (scored.token, Some(scored))));
    let offsets: Vec<usize> = names
        .iter()
        .map(|name| {
            let here = *offset;
            *offset += name.characters();
            here
        })
        .collect();
    let of = |scored: &Scored| {
        // Several tokens may have the same string: the decided one stands for them, or else the
        // likeliest.
        let mut object = Map::new();
        let own = (scored.token, scored.logprob);
        for (token, logprob) in std::iter::once(own).chain(scored.top.iter().copied()) {
            object.entry(naming.of(text, token)).or_insert_with(|| logprob.max(LEAST).into());
        }
        object
    };
    let tops: Vec<Option<Map<String, Value>>> =
        all.iter().map(|(_, scored)| scored.map(of)).collect();
    let logprobs: Vec<Option<f64>> =
        all.iter().map(|(_, scored)| scored.map(|scored| scored.logprob.max(LEAST))).collect();
    let tokens: Vec<String> =
        all.iter().zip(&names).map(|((token, _), name)| naming.name(*token, name)).collect();
    json!({ "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops,
        "text_offset": offsets })
}

/// The scores of a prompt's tokens.
#[derive(Debug, Clone)]
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

    /// As vLLM's `prompt_logprobs`: for every token an object by token ids; none for the first.
    pub fn by_id(&self, text: &Tokenizer) -> Value {
        let of = |scored: &Scored| {
            let mut object = Map::new();
            let ranked = scored.top.iter().enumerate();
            let top = ranked.map(|(rank, &(token, logprob))| (token, logprob, Some(rank + 1)));
            // Where it is none of the likeliest, its rank is not known.
            for (token, logprob, rank) in top.chain([(scored.token, scored.logprob, None)]) {
                object.entry(token.to_string()).or_insert_with(|| {
                    json!({ "logprob": logprob.max(LEAST), "rank": rank,
                        "decoded_token": Named::of(text, token).string })
                });
            }
            Value::Object(object)
        };
        self.all().map(|(_, scored)| scored.map_or(Value::Null, of)).collect()
    }
}
