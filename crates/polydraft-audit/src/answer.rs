//! Completion responses in one form: OpenAI's as vLLM, SGLang and polydraft write them, and
//! llama.cpp's own.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Identity of a token: its id if the server returns ids, else its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// Token id.
    Id(u32),
    /// Token text.
    Text(String),
}

/// Token with its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub key: Key,
    pub text: String,
    pub logprob: f64,
}

/// Token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerToken {
    pub key: Key,
    pub text: String,
    /// Log-probability; `None` if the server left it out.
    pub logprob: Option<f64>,
    /// Most probable tokens at its position, in descending order.
    pub top: Vec<TokenLogprob>,
}

/// One generated sequence of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    pub text: String,
    /// Tokens, if the server returns them, without the end token.
    pub tokens: Vec<AnswerToken>,
    /// Whether the sequence ended at an end token or a stop string.
    pub stopped: bool,
}

impl Choice {
    /// Replaces token ids by token strings as keys.
    pub fn drop_ids(&mut self) {
        for token in &mut self.tokens {
            token.key = Key::Text(token.text.clone());
            for scored in &mut token.top {
                scored.key = Key::Text(scored.text.clone());
            }
        }
    }
}

/// Response to one request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub choices: Vec<Choice>,
    /// Token counts of prompt and completion, as reported by the server.
    pub usage: Option<(usize, usize)>,
    /// Token ids of the prompt, where the server returns them.
    pub prompt: Vec<u32>,
    /// Drafted and accepted tokens, where the server reports them.
    pub drafted: Option<(u64, u64)>,
}

impl Answer {
    /// Returns the first sequence, or an empty one if there is none.
    pub fn first(&self) -> Choice {
        self.choices.first().cloned().unwrap_or_default()
    }

    /// Parses a response of `/v1/completions`, or of llama.cpp's `/completion`.
    pub fn read(body: &Value) -> Result<Self, String> {
        if let Some(choices) = body["choices"].as_array() {
            let usage = &body["usage"];
            let count = |name: &str| usage[name].as_u64().map(|count| count as usize);
            let prompt = ids(&body["choices"][0]["prompt_token_ids"]);
            return Ok(Self {
                choices: choices.iter().map(choice).collect(),
                usage: count("prompt_tokens").zip(count("completion_tokens")),
                prompt,
                drafted: drafted(&body["timings"]),
            });
        }
        let Some(content) = body["content"].as_str() else {
            return Err(format!(
                "expected `choices` or `content`, got neither: {}",
                shortened(body)
            ));
        };
        let mut choice = Choice {
            text: content.to_owned(),
            tokens: scores(&body["completion_probabilities"]),
            stopped: matches!(body["stop_type"].as_str(), Some("eos" | "word")),
        };
        assign_ids(&mut choice, &ids(&body["tokens"]));
        let count = |name: &str| body[name].as_u64().map(|count| count as usize);
        Ok(Self {
            choices: vec![choice],
            usage: count("tokens_evaluated").zip(count("tokens_predicted")),
            prompt: Vec::new(),
            drafted: drafted(&body["timings"]),
        })
    }
}

/// Formats a value for an error message, truncated to 200 characters.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(200).collect()
}

fn drafted(timings: &Value) -> Option<(u64, u64)> {
    timings["draft_n"].as_u64().zip(timings["draft_n_accepted"].as_u64())
}

fn ids(list: &Value) -> Vec<u32> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

fn choice(value: &Value) -> Choice {
    let text = value["text"].as_str().or(value["message"]["content"].as_str());
    let logprobs = &value["logprobs"];
    let tokens = match logprobs["content"].is_array() {
        true => scores(&logprobs["content"]),
        false => columns(logprobs),
    };
    let mut choice = Choice {
        text: text.unwrap_or_default().to_owned(),
        tokens,
        stopped: value["finish_reason"].as_str() == Some("stop"),
    };
    assign_ids(&mut choice, &ids(&value["token_ids"]));
    choice
}

/// Sets token ids that the server returns apart from the log-probabilities.
fn assign_ids(choice: &mut Choice, ids: &[u32]) {
    if choice.tokens.is_empty() {
        choice.tokens = ids
            .iter()
            .map(|&id| AnswerToken {
                key: Key::Id(id),
                text: String::new(),
                logprob: None,
                top: Vec::new(),
            })
            .collect();
    } else if choice.tokens.len() == ids.len() {
        for (token, &id) in choice.tokens.iter_mut().zip(ids) {
            token.key = Key::Id(id);
        }
    }
}

/// Returns the key of a token; vLLM writes ids as strings if requested.
fn key(text: &str, id: Option<u64>) -> Key {
    let written = text.strip_prefix("token_id:").and_then(|id| id.parse().ok());
    match id.and_then(|id| u32::try_from(id).ok()).or(written) {
        Some(id) => Key::Id(id),
        None => Key::Text(text.to_owned()),
    }
}

fn scored(value: &Value) -> Option<TokenLogprob> {
    let text = value["token"].as_str().or(value["tok_str"].as_str())?;
    let logprob = value["logprob"].as_f64().or(value["prob"].as_f64().map(f64::ln))?;
    Some(TokenLogprob { key: key(text, value["id"].as_u64()), text: text.to_owned(), logprob })
}

/// Parses a list with one object per token: the format of chat completions and of llama.cpp.
fn scores(list: &Value) -> Vec<AnswerToken> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |value: &Value| {
        let text = value["token"].as_str().unwrap_or_default();
        let top = value["top_logprobs"].as_array().or(value["top_probs"].as_array());
        let mut top: Vec<TokenLogprob> = top.into_iter().flatten().filter_map(scored).collect();
        top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        AnswerToken {
            key: key(text, value["id"].as_u64()),
            text: text.to_owned(),
            logprob: value["logprob"].as_f64(),
            top,
        }
    };
    list.iter().map(read).collect()
}

/// Parses parallel lists: the legacy format of completions.
fn columns(logprobs: &Value) -> Vec<AnswerToken> {
    let tokens = logprobs["tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |(at, text): (usize, &Value)| {
        let text = text.as_str().unwrap_or_default();
        let top = logprobs["top_logprobs"][at].as_object();
        let mut top: Vec<TokenLogprob> = top
            .into_iter()
            .flatten()
            .filter_map(|(text, logprob)| {
                Some(TokenLogprob {
                    key: key(text, None),
                    text: text.clone(),
                    logprob: logprob.as_f64()?,
                })
            })
            .collect();
        top.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        let logprob = logprobs["token_logprobs"][at].as_f64();
        AnswerToken { key: key(text, None), text: text.to_owned(), logprob, top }
    };
    tokens.iter().enumerate().map(read).collect()
}
