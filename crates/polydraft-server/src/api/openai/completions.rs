//! `/v1/completions`: continuations of prompts.

use polydraft::Token;
use polydraft_engine::Alternatives;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::shared::alternatives::{alternatives, check_total_alternatives};
use crate::api::shared::answer::{Answer, Shape};
use crate::api::shared::error::Problem;
use crate::api::shared::format;
use crate::api::shared::params::{Common, check_range};
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored_params;
use crate::api::shared::values::{Limit, flag_or_false, limit};

/// Parameters of completions only.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Completion {
    /// A string, a list of strings, a list of token ids, or a list of such lists.
    #[schema(value_type = String)]
    prompt: Option<Prompt>,
    /// Maximum tokens of a completion; -1 sets no limit. Default: the server's setting.
    #[serde(default, deserialize_with = "limit")]
    #[schema(value_type = Option<i64>)]
    max_tokens: Option<Limit>,
    /// Returns every token's log-probability at temperature 1, with this many of the likeliest
    /// alternatives; -1 for the whole vocabulary, if the server allows it.
    logprobs: Option<i64>,
    /// Returns the log-probability of every token of the prompt after the first, with this many of
    /// the likeliest alternatives; -1 for all.
    prompt_logprobs: Option<i64>,
    /// Whether the answer begins with the prompt. With logprobs, the prompt's tokens are listed
    /// too.
    #[serde(default, deserialize_with = "flag_or_false")]
    echo: bool,
    /// Whether to return token ids: `token_ids` of the output and `prompt_token_ids`.
    #[serde(default, deserialize_with = "flag_or_false")]
    return_token_ids: bool,
    /// Whether to return the prompt as the model reads it in llama.cpp's `__verbose`.
    #[serde(default, deserialize_with = "flag_or_false")]
    verbose: bool,
    /// Whether log-probabilities name tokens as `token_id:7` instead of by their strings.
    #[serde(default, deserialize_with = "flag_or_false")]
    return_tokens_as_token_ids: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a string, a list of strings, a list of token ids, or a list of such lists"
)]
enum Prompt {
    String(String),
    Strings(Vec<String>),
    Tokens(Vec<Token>),
    Lists(Vec<Vec<Token>>),
}

/// Prepares a request. Encoding takes time: call it on a blocking thread.
///
/// # Errors
/// An invalid request.
pub fn prepare(model: &LoadedModel, body: Value) -> Result<Prepared<Answer>, Problem> {
    let mut common: Common = read(body)?;
    let form = format::requested_form(&mut common)?;
    let completion: Completion = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let ignored = ignored_params(&completion.rest, model.options.strict)?;
    let truncation = common.truncation(model)?;
    let mut params = common.request_params(model, &model.completions, completion.max_tokens)?;
    let listed =
        |param, count: Option<i64>| count.map(|top| alternatives(model, param, top)).transpose();
    let top = listed("logprobs", completion.logprobs)?;
    params.scores = params.scores.or(top.map(Into::into));
    let scored = params.scores.is_some();
    // Token ids are sent with the scores.
    params.scores =
        params.scores.or(completion.return_token_ids.then_some(Alternatives::Likeliest(0)));
    let listed = listed("prompt_logprobs", completion.prompt_logprobs)?;
    params.prompt_scores = top.filter(|_| completion.echo).max(listed);
    let Some(prompt) = completion.prompt else {
        return Err(Problem::invalid("the parameter prompt is missing").with_param("prompt"));
    };
    let tokenizer = &model.language.tokenizer;
    let max_prompt_tokens = if truncation.is_some() { usize::MAX } else { model.context };
    let encode = |prompt: &String| Ok(tokenizer.encode_within(prompt, max_prompt_tokens)?);
    let mut prompts: Vec<Vec<Token>> = match &prompt {
        Prompt::String(prompt) => vec![encode(prompt)?],
        Prompt::Strings(prompts) => {
            check_range("prompt", prompts.len(), 1, model.limits.sequences)?;
            prompts.iter().map(encode).collect::<Result<_, Problem>>()?
        }
        // Also an empty list.
        Prompt::Tokens(tokens) => vec![tokens.clone()],
        Prompt::Lists(lists) => lists.clone(),
    };
    check_range("prompt", prompts.len(), 1, model.limits.sequences)?;
    if let Some(truncation) = truncation {
        let truncate =
            |prompt| truncation.truncate(prompt, model.context, params.limits.max_tokens);
        prompts.iter_mut().for_each(truncate);
    }
    let given_as_tokens = matches!(prompt, Prompt::Tokens(_) | Prompt::Lists(_));
    let echo = match (completion.echo, prompt) {
        (false, _) => Vec::new(),
        (true, Prompt::String(prompt)) => vec![prompt],
        (true, Prompt::Strings(prompts)) => prompts,
        (true, Prompt::Tokens(_) | Prompt::Lists(_)) => {
            // With special tokens, because the client sent them.
            prompts
                .iter()
                .map(|tokens| Ok(tokenizer.decode_with_special(tokens)?))
                .collect::<Result<_, Problem>>()?
        }
    };
    let requests = params
        .for_prompts(prompts)
        .map_err(|error| Problem::invalid(error).with_param("speculation"))?;
    for params in &requests {
        model.check(params)?;
    }
    check_total_alternatives(
        model,
        &requests,
        if listed > top { "prompt_logprobs" } else { "logprobs" },
    )?;
    let timing_options = common.timing_options();
    let usage = common.stream_options.unwrap_or_default().usage();
    let mut answer = Answer::new(model, common.model, Shape::Completion, &requests, usage, echo);
    answer.set_timing_options(timing_options);
    if given_as_tokens {
        answer.echo_special_tokens();
    }
    if listed.is_some() {
        answer.include_prompt_scores();
    }
    let prompts = || requests.iter().map(|params| params.prompt.clone()).collect::<Vec<_>>();
    if completion.return_token_ids {
        answer.include_token_ids(prompts(), scored);
    }
    if completion.verbose {
        answer.include_prompts(&prompts());
    }
    if completion.return_tokens_as_token_ids {
        answer.name_tokens_by_id();
    }
    Ok(Prepared { requests, form, answer, stream: common.stream, ignored })
}
