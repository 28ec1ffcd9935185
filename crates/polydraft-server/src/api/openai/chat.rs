//! `/v1/chat/completions`: answers to conversations.

use polydraft::Token;
use polydraft_engine::Alternatives;
use polydraft_text::{Ending, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::App;
use crate::api::Prepared;
use crate::api::shared::alternatives::{alternatives, check};
use crate::api::shared::answer::{Answer, Shape};
use crate::api::shared::conversation::{encode, encoded, separate_reasoning};
use crate::api::shared::error::Problem;
use crate::api::shared::format;
use crate::api::shared::messages::{Spoken, conversation, left_out, variables};
use crate::api::shared::params::Common;
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored;
use crate::api::shared::tools::tools;
use crate::api::shared::values::{flag, flag_or_not};

/// Parameters of conversations alone.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Chat {
    /// The conversation so far.
    messages: Option<Vec<Spoken>>,
    /// Tokens of an answer at most. Default: as the server was started, else up to the end of the
    /// context.
    max_completion_tokens: Option<usize>,
    /// The older name of max_completion_tokens.
    max_tokens: Option<usize>,
    /// Whether to return every token's log-probability at temperature 1. Default: whether
    /// top_logprobs is not 0.
    #[serde(default, deserialize_with = "flag")]
    logprobs: Option<bool>,
    /// With each, so many of the likeliest alternatives; -1: of all tokens of the vocabulary, where
    /// the server lets requests.
    top_logprobs: Option<i64>,
    /// With the answer the log-probability of every token of the prompt but the first, and so many
    /// of the likeliest alternatives, or -1 for all.
    prompt_logprobs: Option<i64>,
    /// What the model may call: `{"type": "function", "function": {"name": .., "description": ..,
    /// "parameters": .., "strict": ..}}`. With `strict` calls are as the parameters' schema says.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `"auto"`, `"none"`, `"required"`, or `{"type": "function", "function": {"name": ..}}`.
    /// Default: auto.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether there may be several calls in an answer. Default: yes.
    #[serde(default, deserialize_with = "flag")]
    parallel_tool_calls: Option<bool>,
    /// Variables for the model's chat template, such as `{"enable_thinking": false}`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// How much the model should think, for templates that know of it: their variable
    /// `reasoning_effort`. `"none"` sets `enable_thinking` to false too.
    reasoning_effort: Option<String>,
    /// Where the model's reasoning goes, if its chat template marks it: `"auto"` into
    /// `reasoning_content`, `"none"` with its marks into the content.
    reasoning_format: Option<String>,
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
    /// Whether the model goes on with the last message, an answer's beginning. Default: no, unless
    /// the server was started so.
    #[serde(default, deserialize_with = "flag")]
    continue_final_message: Option<bool>,
    /// Whether the answer then begins with that message.
    #[serde(default, deserialize_with = "flag_or_not")]
    echo: bool,
    /// Whether the prompt ends with what makes the model answer. Default: yes, unless
    /// continue_final_message.
    #[serde(default, deserialize_with = "flag")]
    add_generation_prompt: Option<bool>,
    /// vLLM's: `{"prompt_token_ids": [..]}` is the prompt, in place of the messages' tokens. All
    /// else in it is ignored: no KV cache is transferred.
    #[schema(value_type = Option<Object>)]
    kv_transfer_params: Option<Transfer>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Transfer {
    prompt_token_ids: Option<Vec<Token>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Prepares a request. Encoding takes time: not for the threads that answer.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: Value) -> Result<Prepared<Answer>, Problem> {
    let mut common: Common = read(body)?;
    let form = format::form(&mut common)?;
    let own: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let mut ignored = ignored(&own.rest, app.options.strict)?;
    let transfer = own.kv_transfer_params;
    ignored.extend(
        transfer
            .as_ref()
            .filter(|transfer| !transfer.rest.is_empty())
            .map(|_| "kv_transfer_params".to_owned()),
    );
    if own.max_tokens.is_some()
        && own.max_completion_tokens.is_some_and(|most| Some(most) != own.max_tokens)
    {
        let problem = "max_tokens is the older name of max_completion_tokens: give one of them";
        return Err(Problem::invalid(problem).of("max_tokens"));
    }
    let max_tokens = own.max_completion_tokens.or(own.max_tokens);
    let truncation = common.truncation(app)?;
    let mut params = common.request_params(app, &app.chat, max_tokens)?;
    let top = own.logprobs.unwrap_or(own.top_logprobs.is_some_and(|top| top != 0));
    let top = top.then(|| alternatives(app, "top_logprobs", own.top_logprobs.unwrap_or(0)));
    params.scores = params.scores.or(top.transpose()?.map(Into::into));
    let scored = params.scores.is_some();
    // Tokens come with their scores.
    params.scores = params.scores.or(own.return_token_ids.then_some(Alternatives::Likeliest(0)));
    let of_prompt = own.prompt_logprobs.map(|top| alternatives(app, "prompt_logprobs", top));
    params.prompt_scores = of_prompt.transpose()?;
    let messages = own.messages.as_deref().unwrap_or_default();
    let prefilled = app.options.prefill && own.add_generation_prompt.is_none();
    let prefilled = prefilled && messages.last().is_some_and(Spoken::is_answer);
    let goes_on = own.continue_final_message.unwrap_or(prefilled);
    let ending = ending(goes_on, own.add_generation_prompt)?;
    let answers = messages.iter().rev().take_while(|message| message.is_answer()).count();
    if prefilled && goes_on && answers > 1 {
        let problem = "several answers at the end: expected one that is to be gone on with";
        return Err(Problem::invalid(problem).of("messages"));
    }
    let separates = separates_reasoning(own.reasoning_format.as_deref())?;
    let Some(messages) = own.messages.filter(|messages| !messages.is_empty()) else {
        return Err(Problem::invalid("the parameter messages is missing or empty").of("messages"));
    };
    let tools = tools(app, own.tools, own.tool_choice, own.parallel_tool_calls, form.as_ref())?;
    let mut form = match &tools {
        Some(tools) => tools.grammar.clone(),
        None => form,
    };
    let messages = conversation(app, messages)?;
    let variables = variables(own.chat_template_kwargs, own.reasoning_effort);
    let listed = tools.as_ref().map_or(&[][..], |tools| &tools.listed);
    let rendering = Rendering { tools: listed, variables: Some(&variables), ending };
    let prompt = match transfer.and_then(|transfer| transfer.prompt_token_ids) {
        Some(tokens) => encoded(app, tokens)?,
        None => {
            ignored.extend(left_out(app, &messages, &rendering)?);
            encode(app, &messages, &rendering, truncation)?
        }
    };
    params.prompt = prompt.tokens;
    if let Some(truncation) = truncation {
        truncation.cut(&mut params.prompt, app.context, params.limits.max_tokens);
    }
    let continued = messages.last().filter(|_| ending == Ending::Continue);
    let reasoning = match separates {
        true => separate_reasoning(app, &mut params, &mut form, continued, prompt.in_reasoning),
        false => None,
    };
    app.check(&params)?;
    let lists = params.prompt_scores.is_some();
    let requests = vec![params];
    check(app, &requests, if lists { "prompt_logprobs" } else { "top_logprobs" })?;
    let tells = common.tells();
    let usage = common.stream_options.unwrap_or_default().usage();
    let echo = continued.filter(|_| own.echo).map(|message| message.content.clone());
    let echo = echo.into_iter().collect();
    let mut answer = Answer::new(app, common.model, Shape::Chat, &requests, usage, echo);
    if let Some(tools) = &tools {
        answer.reads_calls(|| tools.calls());
    }
    if let Some(reasoning) = reasoning {
        answer.reads_reasoning(|| reasoning.clone());
    }
    answer.tells(tells);
    let prompts = || requests.iter().map(|params| params.prompt.clone()).collect::<Vec<_>>();
    if lists {
        answer.lists_prompt_scores();
    }
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

/// What the prompt ends with.
///
/// # Errors
/// Both an answer and the last message to go on with.
fn ending(goes_on: bool, answers: Option<bool>) -> Result<Ending, Problem> {
    match (goes_on, answers) {
        (true, Some(true)) => {
            let problem = "continue_final_message goes on with the last message: there is no \
                           generation prompt then, say add_generation_prompt false";
            Err(Problem::invalid(problem).of("continue_final_message"))
        }
        (true, _) => Ok(Ending::Continue),
        (false, Some(false)) => Ok(Ending::Message),
        (false, _) => Ok(Ending::Answer),
    }
}

/// Whether reasoning is told apart from the answer.
fn separates_reasoning(format: Option<&str>) -> Result<bool, Problem> {
    match format {
        None | Some("auto" | "deepseek") => Ok(true),
        Some("none") => Ok(false),
        Some(got) => {
            let problem = format!("reasoning_format: expected auto, deepseek or none, got {got:?}");
            Err(Problem::invalid(problem).of("reasoning_format"))
        }
    }
}
