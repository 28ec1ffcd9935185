//! `/v1/completions`: continuations of prompts.

use polydraft::Token;
use polydraft_engine::Alternatives;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::App;
use crate::api::Prepared;
use crate::api::shared::alternatives::{alternatives, check};
use crate::api::shared::answer::{Answer, Shape};
use crate::api::shared::error::Problem;
use crate::api::shared::format;
use crate::api::shared::params::{Common, within};
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored;
use crate::api::shared::values::flag_or_not;

/// Parameters of completions alone.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Completion {
    /// A string, a list of strings, a list of token ids, or a list of such lists.
    #[schema(value_type = String)]
    prompt: Option<Prompt>,
    /// Tokens of a completion at most. Default: as the server was started.
    max_tokens: Option<usize>,
    /// With every token its log-probability at temperature 1, and so many of the likeliest
    /// alternatives; -1: of all tokens of the vocabulary, where the server lets requests.
    logprobs: Option<i64>,
    /// With the answer the log-probability of every token of the prompt but the first, and so many
    /// of the likeliest alternatives, or -1 for all.
    prompt_logprobs: Option<i64>,
    /// Whether the answer begins with the prompt; with logprobs its tokens have theirs.
    #[serde(default, deserialize_with = "flag_or_not")]
    echo: bool,
    /// Whether the answer has the ids of its tokens, `token_ids`, and of the prompt's,
    /// `prompt_token_ids`.
    #[serde(default, deserialize_with = "flag_or_not")]
    return_token_ids: bool,
    /// Whether the answer has the prompt as the model reads it, as llama.cpp's `__verbose`.
    #[serde(default, deserialize_with = "flag_or_not")]
    verbose: bool,
    /// Whether log-probabilities name tokens as `token_id:7` instead of by their strings.
    #[serde(default, deserialize_with = "flag_or_not")]
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
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<Token>),
    Lists(Vec<Vec<Token>>),
}

/// Prepares a request. Encoding takes time: not for the threads that answer.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: Value) -> Result<Prepared<Answer>, Problem> {
    let mut common: Common = read(body)?;
    let form = format::form(&mut common)?;
    let own: Completion = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let ignored = ignored(&own.rest, app.options.strict)?;
    let truncation = common.truncation(app)?;
    let mut params = common.request_params(app, &app.completions, own.max_tokens)?;
    let listed =
        |param, count: Option<i64>| count.map(|top| alternatives(app, param, top)).transpose();
    let top = listed("logprobs", own.logprobs)?;
    params.scores = params.scores.or(top.map(Into::into));
    let scored = params.scores.is_some();
    // Tokens come with their scores.
    params.scores = params.scores.or(own.return_token_ids.then_some(Alternatives::Likeliest(0)));
    let listed = listed("prompt_logprobs", own.prompt_logprobs)?;
    params.prompt_scores = top.filter(|_| own.echo).max(listed);
    let Some(prompt) = own.prompt else {
        return Err(Problem::invalid("the parameter prompt is missing").of("prompt"));
    };
    let text = &app.language.tokenizer;
    let most = if truncation.is_some() { usize::MAX } else { app.context };
    let encode = |prompt: &String| Ok(text.encode_within(prompt, most)?);
    let mut prompts: Vec<Vec<Token>> = match &prompt {
        Prompt::Text(prompt) => vec![encode(prompt)?],
        Prompt::Texts(prompts) => {
            within("prompt", prompts.len(), 1, app.limits.texts)?;
            prompts.iter().map(encode).collect::<Result<_, Problem>>()?
        }
        // An empty list may be either.
        Prompt::Tokens(tokens) => vec![tokens.clone()],
        Prompt::Lists(lists) => lists.clone(),
    };
    within("prompt", prompts.len(), 1, app.limits.texts)?;
    if let Some(truncation) = truncation {
        let cut = |prompt| truncation.cut(prompt, app.context, params.limits.max_tokens);
        prompts.iter_mut().for_each(cut);
    }
    let of_tokens = matches!(prompt, Prompt::Tokens(_) | Prompt::Lists(_));
    let echo = match (own.echo, prompt) {
        (false, _) => Vec::new(),
        (true, Prompt::Text(prompt)) => vec![prompt],
        (true, Prompt::Texts(prompts)) => prompts,
        (true, Prompt::Tokens(_) | Prompt::Lists(_)) => {
            // With special tokens: they are what the client said.
            prompts
                .iter()
                .map(|tokens| Ok(text.decode_all(tokens)?))
                .collect::<Result<_, Problem>>()?
        }
    };
    let requests =
        params.for_prompts(prompts).map_err(|error| Problem::invalid(error).of("speculation"))?;
    for params in &requests {
        app.check(params)?;
    }
    check(app, &requests, if listed > top { "prompt_logprobs" } else { "logprobs" })?;
    let tells = common.tells();
    let usage = common.stream_options.unwrap_or_default().usage();
    let mut answer = Answer::new(app, common.model, Shape::Completion, &requests, usage, echo);
    answer.tells(tells);
    if of_tokens {
        answer.echoes_tokens();
    }
    if listed.is_some() {
        answer.lists_prompt_scores();
    }
    let prompts = || requests.iter().map(|params| params.prompt.clone()).collect::<Vec<_>>();
    if own.return_token_ids {
        answer.lists_token_ids(prompts(), scored);
    }
    if own.verbose {
        answer.tells_prompts(&prompts());
    }
    if own.return_tokens_as_token_ids {
        answer.names_tokens_by_id();
    }
    Ok(Prepared { requests, form, answer, stream: common.stream, ignored })
}
