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
    /// Its string; where it is only a part of a character, U+FFFD.
    token: String,
    /// The natural logarithm of its probability at temperature 1.
    logprob: f64,
    /// Its string's bytes, where it is whole characters.
    bytes: Option<Vec<u8>>,
}

fn text_of(text: &Tokenizer, token: Token) -> String {
    // A token that was decided has a string, or its request has failed already.
    text.decode(&[token]).unwrap_or_default()
}

fn top(text: &Tokenizer, token: Token, logprob: f64) -> TopToken {
    let token = text_of(text, token);
    let bytes = (!token.contains(char::REPLACEMENT_CHARACTER)).then(|| token.clone().into_bytes());
    TopToken { token, logprob: logprob.max(LEAST), bytes }
}

/// As conversations have them.
pub fn chat(text: &Tokenizer, scores: &[Scored]) -> Vec<ChatToken> {
    let of = |scored: &Scored| ChatToken {
        own: top(text, scored.token, scored.logprob),
        top_logprobs: scored
            .top
            .iter()
            .map(|&(token, logprob)| top(text, token, logprob))
            .collect(),
    };
    scores.iter().map(of).collect()
}

/// As completions have them; `offset` is where the first one's string begins, in characters, and
/// afterwards where the next will.
pub fn completion(text: &Tokenizer, scores: &[Scored], offset: &mut usize) -> Value {
    let texts: Vec<String> = scores.iter().map(|scored| text_of(text, scored.token)).collect();
    let offsets: Vec<usize> = texts
        .iter()
        .map(|text| {
            let here = *offset;
            *offset += text.chars().count();
            here
        })
        .collect();
    let tops = scores.iter().map(|scored| {
        let listed = scored.top.iter().copied();
        // Several tokens may have the same string: the likeliest stands for them.
        let mut object = Map::new();
        for (token, logprob) in listed {
            object.entry(text_of(text, token)).or_insert_with(|| logprob.max(LEAST).into());
        }
        object
            .entry(text_of(text, scored.token))
            .or_insert_with(|| scored.logprob.max(LEAST).into());
        Value::Object(object)
    });
    let tops: Vec<Value> = tops.collect();
    let logprobs: Vec<f64> = scores.iter().map(|scored| scored.logprob.max(LEAST)).collect();
    json!({ "tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops,
        "text_offset": offsets })
}
