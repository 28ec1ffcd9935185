//! `/completion`: llama.cpp's own route, translated into `/v1/completions`.

use std::collections::BTreeMap;

use polydraft::Token;
use polydraft_engine::Alternatives;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::{Native, Probabilities, Told};
use super::samplers;
use crate::App;
use crate::api::Prepared;
use crate::api::openai::completions;
use crate::api::shared::alternatives::few_alternatives;
use crate::api::shared::error::Problem;
use crate::api::shared::read::read;
use crate::api::shared::values::null_is_default;
use crate::worker::RequestParams;

/// What has another name or form here.
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
    Of(f64),
    Never(bool),
}

/// What llama.cpp's clients send though it is their default: ignored by name, but for `--strict`.
const USUAL: &str = "n_keep";
/// The least bias there is: a token that has it is as good as impossible.
const NEVER: f64 = -100.0;

/// Prepares a request as one of completions.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: Value) -> Result<Prepared<Native>, Problem> {
    let own: Completion = read(body)?;
    let mut body = own.rest;
    let strict = app.options.strict;
    let mut usual = Vec::new();
    if !strict {
        usual.extend(body.remove(USUAL).map(|_| USUAL));
        usual.extend(samplers::apply(&mut body)?.then_some(samplers::NAME));
    }
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    let prompt = own.prompt.unwrap_or(Value::Null);
    let listed =
        matches!(&prompt, Value::Array(parts) if !parts.is_empty() && parts.iter().all(is_prompt));
    let prompts = match prompt {
        Value::Array(parts) if listed => parts,
        prompt => vec![prompt],
    };
    let prompts: Vec<Vec<Token>> =
        prompts.into_iter().map(|prompt| encoded(app, prompt)).collect::<Result<_, _>>()?;
    let count = prompts.len();
    set("prompt", json!(prompts));
    set("stream", own.stream.into());
    match own.n_predict {
        None => {}
        Some(most) if most < 0 => set("max_tokens", app.context.into()),
        Some(most) => set("max_tokens", most.into()),
    }
    if let Some(count) = own.n_cmpl {
        set("n", count.into());
    }
    if let Some(seed) = own.seed.filter(|seed| *seed >= 0) {
        set("seed", seed.into());
    }
    if let Some(biases) = own.logit_bias {
        set("logit_bias", as_object(app, biases)?.into());
    }
    let count_of_probs = own.n_probs.filter(|count| *count > 0);
    let sampled = count_of_probs.filter(|_| own.post_sampling_probs);
    if let Some(count) = sampled {
        few_alternatives("n_probs", count)?;
    } else {
        set("logprobs", count_of_probs.into());
    }
    set("return_token_ids", (own.return_tokens || own.stream).into());
    let several = count > 1 || own.n_cmpl.is_some_and(|count| count > 1);
    let told = Told {
        tokens: own.return_tokens || own.stream,
        probabilities: count_of_probs.map(|_| match sampled {
            Some(_) => Probabilities::Sampled,
            None => Probabilities::Logarithms,
        }),
        several,
        fields: own.response_fields,
    };
    let model = app.name().to_owned();
    let mut prepared = completions::prepare(app, Value::Object(body))?;
    for params in &mut prepared.requests {
        params.progress = true;
        if let Some(count) = sampled {
            params.scores = Some(Alternatives::Sampled(count));
        }
        if own.ignore_eos {
            let formed = prepared.form.is_some() || params.allowed.is_some();
            never_ends(app, params, formed);
        }
    }
    prepared.ignored.extend(usual.into_iter().map(str::to_owned));
    let Prepared { requests, form, answer, stream, ignored } = prepared;
    let answer = Native::new(answer, model, app.context, &requests, told);
    Ok(Prepared { requests, form, answer, stream, ignored })
}

/// llama.cpp's ignore_eos forbids the end tokens, where vLLM's, as on other routes here, goes on
/// after them.
fn never_ends(app: &App, params: &mut RequestParams, formed: bool) {
    // Where nothing else is allowed, the end comes all the same.
    let bias = if formed { NEVER as f32 } else { f32::NEG_INFINITY };
    let biases = &mut params.penalties.bias;
    for token in &app.completions.end_tokens {
        biases.retain(|(other, _)| other != token);
        biases.push((*token, bias));
    }
}

/// Whether a part of a list is a prompt of its own, and not a token or a text among tokens.
fn is_prompt(part: &Value) -> bool {
    part.is_array() || part.is_object() || part.is_string()
}

/// The tokens of one prompt: a text, an object with one, or tokens with strings among them.
fn encoded(app: &App, prompt: Value) -> Result<Vec<Token>, Problem> {
    let tokenizer = &app.language.tokenizer;
    let wrong = || {
        let expected = "expected a string, tokens with strings among them, an object with \
                        prompt_string, or a list of these";
        Problem::invalid(format_args!("prompt: {expected}")).of("prompt")
    };
    match prompt {
        Value::String(text) => Ok(tokenizer.encode_within(&text, app.context)?),
        Value::Object(mut members) => {
            if members
                .get("multimodal_data")
                .is_some_and(|data| !data.is_null() && data != &json!([]))
            {
                let problem = Problem::invalid("pictures and sounds are not supported");
                return Err(problem.of("prompt").code("unsupported_parameter"));
            }
            match members.remove("prompt_string") {
                Some(Value::String(text)) => Ok(tokenizer.encode_within(&text, app.context)?),
                _ => Err(wrong()),
            }
        }
        Value::Array(parts) => {
            let mut tokens = Vec::new();
            for (number, part) in parts.into_iter().enumerate() {
                match part {
                    // Only a text at the start has what texts begin with.
                    Value::String(text) if number == 0 => {
                        tokens.extend(tokenizer.encode_within(&text, app.context)?);
                    }
                    Value::String(text) => {
                        tokens.extend(tokenizer.encode_plain_within(&text, app.context)?);
                    }
                    part => tokens.push(serde_json::from_value(part).map_err(|_| wrong())?),
                }
            }
            Ok(tokens)
        }
        _ => Err(wrong()),
    }
}

/// Biases by token. Of a text, each of its tokens gets the bias.
fn as_object(app: &App, biases: Biases) -> Result<Map<String, Value>, Problem> {
    let named = |name: String| name.parse().map_or(Biased::Text(name), Biased::Token);
    let pairs = match biases {
        Biases::Object(object) => {
            object.into_iter().map(|(name, bias)| (named(name), bias)).collect()
        }
        Biases::Pairs(pairs) => pairs,
    };
    let mut object = Map::new();
    for (biased, bias) in pairs {
        let bias = match bias {
            Bias::Of(bias) => bias,
            Bias::Never(false) => NEVER,
            Bias::Never(true) => {
                let problem = "logit_bias: expected a number or false, got true";
                return Err(Problem::invalid(problem).of("logit_bias"));
            }
        };
        let tokens = match biased {
            Biased::Token(token) => vec![token],
            Biased::Text(text) => app.language.tokenizer.encode_plain_within(&text, app.context)?,
        };
        object.extend(tokens.into_iter().map(|token| (token.to_string(), bias.into())));
    }
    Ok(object)
}
