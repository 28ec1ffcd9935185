//! `/completion`: llama.cpp's own route, translated into `/v1/completions`.

use std::collections::BTreeMap;

use polydraft::Token;
use polydraft_engine::Alternatives;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::{NativeReply, Probabilities, ReplyOptions};
use super::samplers;
use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::openai::completions;
use crate::api::shared::alternatives::check_top_logprobs;
use crate::api::shared::error::Problem;
use crate::api::shared::read::read;
use crate::api::shared::values::null_is_default;
use crate::worker::RequestParams;

/// Fields with another name or form in `/v1/completions`.
#[derive(Debug, Deserialize)]
struct Completion {
    prompt: Option<Value>,
    n_predict: Option<i64>,
    n_cmpl: Option<usize>,
    n_probs: Option<usize>,
    seed: Option<i64>,
    logit_bias: Option<Biases>,
    #[serde(default, deserialize_with = "null_is_default")]
    return_tokens: bool,
    #[serde(default, deserialize_with = "null_is_default")]
    post_sampling_probs: bool,
    #[serde(default, deserialize_with = "null_is_default")]
    ignore_eos: bool,
    #[serde(default, deserialize_with = "null_is_default")]
    stream: bool,
    #[serde(default, deserialize_with = "null_is_default")]
    response_fields: Vec<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "pairs of a token, or a text, and a bias")]
enum Biases {
    Pairs(Vec<(Biased, Bias)>),
    Object(BTreeMap<String, Bias>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a token or a text")]
enum Biased {
    Token(Token),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a bias, or false")]
enum Bias {
    Value(f64),
    Flag(bool),
}

/// Sent by llama.cpp's clients although it is their default. Reported as ignored, unless the server
/// is strict.
const IGNORED_PARAM: &str = "n_keep";
/// Minimum bias: makes a token practically impossible.
const MIN_BIAS: f64 = -100.0;

/// Prepares a request by translating it into one of completions.
///
/// # Errors
/// An invalid request.
pub fn prepare(model: &LoadedModel, body: Value) -> Result<Prepared<NativeReply>, Problem> {
    let request: Completion = read(body)?;
    let mut body = request.rest;
    let strict = model.options.strict;
    let mut ignored = Vec::new();
    if !strict {
        ignored.extend(body.remove(IGNORED_PARAM).map(|_| IGNORED_PARAM));
        ignored.extend(samplers::apply(&mut body)?.then_some(samplers::NAME));
    }
    let mut insert = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    let prompt = request.prompt.unwrap_or(Value::Null);
    let is_list =
        matches!(&prompt, Value::Array(parts) if !parts.is_empty() && parts.iter().all(is_prompt));
    let prompts = match prompt {
        Value::Array(parts) if is_list => parts,
        prompt => vec![prompt],
    };
    let prompts: Vec<Vec<Token>> =
        prompts.into_iter().map(|prompt| encode_prompt(model, prompt)).collect::<Result<_, _>>()?;
    let count = prompts.len();
    insert("prompt", json!(prompts));
    insert("stream", request.stream.into());
    match request.n_predict {
        None => {}
        Some(max) if max < 0 => insert("max_tokens", model.context.into()),
        Some(max) => insert("max_tokens", max.into()),
    }
    if let Some(count) = request.n_cmpl {
        insert("n", count.into());
    }
    if let Some(seed) = request.seed.filter(|seed| *seed >= 0) {
        insert("seed", seed.into());
    }
    if let Some(biases) = request.logit_bias {
        insert("logit_bias", biases_by_token(model, biases)?.into());
    }
    let count_of_probs = request.n_probs.filter(|count| *count > 0);
    let sampled = count_of_probs.filter(|_| request.post_sampling_probs);
    if let Some(count) = sampled {
        check_top_logprobs("n_probs", count)?;
    } else {
        insert("logprobs", count_of_probs.into());
    }
    insert("return_token_ids", (request.return_tokens || request.stream).into());
    let several = count > 1 || request.n_cmpl.is_some_and(|count| count > 1);
    let options = ReplyOptions {
        tokens: request.return_tokens || request.stream,
        probabilities: count_of_probs.map(|_| match sampled {
            Some(_) => Probabilities::Sampled,
            None => Probabilities::Logprobs,
        }),
        several,
        fields: request.response_fields,
    };
    let model_name = model.name().to_owned();
    let mut prepared = completions::prepare(model, Value::Object(body))?;
    for params in &mut prepared.requests {
        params.progress = true;
        if let Some(count) = sampled {
            params.scores = Some(Alternatives::Sampled(count));
        }
        if request.ignore_eos {
            let constrained = prepared.form.is_some() || params.allowed.is_some();
            forbid_end_tokens(model, params, constrained);
        }
    }
    prepared.ignored.extend(ignored.into_iter().map(str::to_owned));
    let Prepared { requests, form, answer, stream, ignored } = prepared;
    let answer = NativeReply::new(answer, model_name, model.context, &requests, options);
    Ok(Prepared { requests, form, answer, stream, ignored })
}

/// Forbids the end tokens: llama.cpp's `ignore_eos`. On the other routes `ignore_eos` has vLLM's
/// meaning: the output continues after an end token.
fn forbid_end_tokens(model: &LoadedModel, params: &mut RequestParams, constrained: bool) {
    // With a grammar or allowed tokens the end may be the only possible token, so keep it possible.
    let bias = if constrained { MIN_BIAS as f32 } else { f32::NEG_INFINITY };
    let biases = &mut params.penalties.bias;
    for token in &model.completions.end_tokens {
        biases.retain(|(other, _)| other != token);
        biases.push((*token, bias));
    }
}

/// Whether an element of a list is a prompt of its own rather than a token. A list without such
/// elements is a single prompt.
fn is_prompt(part: &Value) -> bool {
    part.is_array() || part.is_object() || part.is_string()
}

/// Encodes one prompt: a string, an object with a string, or tokens mixed with strings.
fn encode_prompt(model: &LoadedModel, prompt: Value) -> Result<Vec<Token>, Problem> {
    let tokenizer = &model.language.tokenizer;
    let invalid = || {
        let expected = "expected a string, tokens with strings among them, an object with \
                        prompt_string, or a list of these";
        Problem::invalid(format_args!("prompt: {expected}")).with_param("prompt")
    };
    match prompt {
        Value::String(text) => Ok(tokenizer.encode_within(&text, model.context)?),
        Value::Object(mut members) => {
            if members
                .get("multimodal_data")
                .is_some_and(|data| !data.is_null() && data != &json!([]))
            {
                let problem = Problem::invalid("images and audio are not supported");
                return Err(problem.with_param("prompt").with_code("unsupported_parameter"));
            }
            match members.remove("prompt_string") {
                Some(Value::String(text)) => Ok(tokenizer.encode_within(&text, model.context)?),
                _ => Err(invalid()),
            }
        }
        Value::Array(parts) => {
            let mut tokens = Vec::new();
            for (number, part) in parts.into_iter().enumerate() {
                match part {
                    // Only a string at the start gets the special tokens of a beginning.
                    Value::String(text) if number == 0 => {
                        tokens.extend(tokenizer.encode_within(&text, model.context)?);
                    }
                    Value::String(text) => {
                        tokens.extend(tokenizer.encode_plain_within(&text, model.context)?);
                    }
                    part => tokens.push(serde_json::from_value(part).map_err(|_| invalid())?),
                }
            }
            Ok(tokens)
        }
        _ => Err(invalid()),
    }
}

/// Biases by token. The bias of a string applies to each of its tokens.
fn biases_by_token(model: &LoadedModel, biases: Biases) -> Result<Map<String, Value>, Problem> {
    let parse_key = |name: String| name.parse().map_or(Biased::Text(name), Biased::Token);
    let pairs = match biases {
        Biases::Object(object) => {
            object.into_iter().map(|(name, bias)| (parse_key(name), bias)).collect()
        }
        Biases::Pairs(pairs) => pairs,
    };
    let mut object = Map::new();
    for (biased, bias) in pairs {
        let bias = match bias {
            Bias::Value(bias) => bias,
            Bias::Flag(false) => MIN_BIAS,
            Bias::Flag(true) => {
                let problem = "logit_bias: expected a number or false, got true";
                return Err(Problem::invalid(problem).with_param("logit_bias"));
            }
        };
        let tokens = match biased {
            Biased::Token(token) => vec![token],
            Biased::Text(text) => {
                model.language.tokenizer.encode_plain_within(&text, model.context)?
            }
        };
        object.extend(tokens.into_iter().map(|token| (token.to_string(), bias.into())));
    }
    Ok(object)
}
