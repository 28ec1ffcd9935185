//! `/v1/chat/completions`: answers to conversations.

use polydraft::Token;
use polydraft_engine::Alternatives;
use polydraft_text::{Ending, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::shared::alternatives::{alternatives, check_total_alternatives};
use crate::api::shared::answer::{Answer, Shape};
use crate::api::shared::conversation::{encode_messages, prompt_from_tokens, read_output};
use crate::api::shared::error::Problem;
use crate::api::shared::format;
use crate::api::shared::messages::{ChatMessage, to_messages};
use crate::api::shared::omitted::name_omitted;
use crate::api::shared::params::Common;
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored_params;
use crate::api::shared::thinking::Thinking;
use crate::api::shared::tools::{ToolForm, ToolParams, prepare_tools};
use crate::api::shared::values::{Limit, flag, flag_or_false, limit};

/// Parameters of conversations only.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Chat {
    /// The conversation so far.
    messages: Option<Vec<ChatMessage>>,
    /// Maximum tokens of an answer; -1 sets no limit. Default: the server's setting,
    /// else up to the end of the context.
    #[serde(default, deserialize_with = "limit")]
    #[schema(value_type = Option<i64>)]
    max_completion_tokens: Option<Limit>,
    /// Older name of max_completion_tokens. Also as `n_predict`.
    #[serde(default, alias = "n_predict", deserialize_with = "limit")]
    #[schema(value_type = Option<i64>)]
    max_tokens: Option<Limit>,
    /// Whether to return every token's log-probability at temperature 1. Default: true if
    /// top_logprobs is not 0.
    #[serde(default, deserialize_with = "flag")]
    logprobs: Option<bool>,
    /// Number of likeliest alternatives to list with each token; -1 for the whole vocabulary, if
    /// the server allows it.
    top_logprobs: Option<i64>,
    /// Returns the log-probability of every token of the prompt after the first, with this many of
    /// the likeliest alternatives; -1 for all.
    prompt_logprobs: Option<i64>,
    /// Tools that the model may call: `{"type": "function", "function": {"name": .., "description":
    /// .., "parameters": .., "strict": ..}}`. With `strict`, calls match the schema of the
    /// parameters.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `"auto"`, `"none"`, `"required"`, or `{"type": "function", "function": {"name": ..}}`.
    /// Default: auto.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether an answer may have several calls. Default: true.
    #[serde(default, deserialize_with = "flag")]
    parallel_tool_calls: Option<bool>,
    #[serde(flatten)]
    thinking: Thinking,
    /// Placement of the model's reasoning, if its chat template marks it: `"auto"` in
    /// `reasoning_content`, `"none"` in the content with its marks.
    reasoning_format: Option<String>,
    /// Whether to return token ids: `token_ids` of the output and `prompt_token_ids`.
    #[serde(default, deserialize_with = "flag_or_false")]
    return_token_ids: bool,
    /// Whether to return the rendered prompt in llama.cpp's `__verbose`.
    #[serde(default, deserialize_with = "flag_or_false")]
    verbose: bool,
    /// Whether log-probabilities name tokens as `token_id:7` instead of by their strings.
    #[serde(default, deserialize_with = "flag_or_false")]
    return_tokens_as_token_ids: bool,
    /// Whether the model continues the last message, the beginning of an answer. Default: the
    /// server's setting, else false.
    #[serde(default, deserialize_with = "flag")]
    continue_final_message: Option<bool>,
    /// Whether the answer repeats the message that it continues.
    #[serde(default, deserialize_with = "flag_or_false")]
    echo: bool,
    /// Whether to end the prompt with the template's generation prompt. Default: true, unless
    /// continue_final_message is set.
    #[serde(default, deserialize_with = "flag")]
    add_generation_prompt: Option<bool>,
    /// vLLM's parameter: `{"prompt_token_ids": [..]}` replaces the tokens of the messages. All
    /// other fields are ignored: no KV cache is transferred.
    #[schema(value_type = Option<Object>)]
    kv_transfer_params: Option<KvTransferParams>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct KvTransferParams {
    prompt_token_ids: Option<Vec<Token>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Prepares a request. Encoding takes time: call it on a blocking thread.
///
/// # Errors
/// An invalid request.
pub fn prepare(model: &LoadedModel, body: Value) -> Result<Prepared<Answer>, Problem> {
    let mut common: Common = read(body)?;
    let form = format::requested_form(&mut common)?;
    let chat: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let mut ignored = ignored_params(&chat.rest, model.options.strict)?;
    let kv_transfer = chat.kv_transfer_params;
    ignored.extend(
        kv_transfer
            .as_ref()
            .filter(|kv_transfer| !kv_transfer.rest.is_empty())
            .map(|_| "kv_transfer_params".to_owned()),
    );
    if chat.max_tokens.is_some()
        && chat.max_completion_tokens.is_some_and(|max| Some(max) != chat.max_tokens)
    {
        let problem = "max_tokens is the older name of max_completion_tokens: give one of them";
        return Err(Problem::invalid(problem).with_param("max_tokens"));
    }
    let max_tokens = chat.max_completion_tokens.or(chat.max_tokens);
    let truncation = common.truncation(model)?;
    let mut params = common.request_params(model, &model.chat, max_tokens)?;
    let top = chat.logprobs.unwrap_or(chat.top_logprobs.is_some_and(|top| top != 0));
    let top = top.then(|| alternatives(model, "top_logprobs", chat.top_logprobs.unwrap_or(0)));
    params.scores = params.scores.or(top.transpose()?.map(Into::into));
    let scored = params.scores.is_some();
    // Token ids are sent with the scores.
    params.scores = params.scores.or(chat.return_token_ids.then_some(Alternatives::Likeliest(0)));
    let prompt_scores = chat.prompt_logprobs.map(|top| alternatives(model, "prompt_logprobs", top));
    params.prompt_scores = prompt_scores.transpose()?;
    let messages = chat.messages.as_deref().unwrap_or_default();
    let prefilled = model.options.continue_final_answer && chat.add_generation_prompt.is_none();
    let prefilled = prefilled && messages.last().is_some_and(ChatMessage::is_answer);
    let continues = chat.continue_final_message.unwrap_or(prefilled);
    let ending = ending(continues, chat.add_generation_prompt)?;
    let answers = messages.iter().rev().take_while(|message| message.is_answer()).count();
    if prefilled && continues && answers > 1 {
        let problem = "expected one answer at the end to continue, got several";
        return Err(Problem::invalid(problem).with_param("messages"));
    }
    let separate = parse_reasoning_format(chat.reasoning_format.as_deref())?;
    let Some(messages) = chat.messages.filter(|messages| !messages.is_empty()) else {
        return Err(
            Problem::invalid("the parameter messages is missing or empty").with_param("messages")
        );
    };
    let tool_params = ToolParams {
        tools: chat.tools,
        choice: chat.tool_choice,
        parallel: chat.parallel_tool_calls,
        form: ToolForm::Nested,
    };
    let tools = prepare_tools(model, tool_params, form.as_ref(), &mut ignored)?;
    let mut form = match &tools {
        Some(tools) => tools.grammar.clone(),
        None => form,
    };
    let messages = to_messages(model, messages, &mut ignored)?;
    chat.thinking.name_without_effect(model, &mut ignored)?;
    let variables = chat.thinking.variables();
    let listed = tools.as_ref().map_or(&[][..], |tools| &tools.listed);
    let rendering = Rendering { tools: listed, variables: Some(&variables), ending };
    let prompt = match kv_transfer.and_then(|kv_transfer| kv_transfer.prompt_token_ids) {
        Some(tokens) => prompt_from_tokens(model, tokens)?,
        None => {
            name_omitted(model, &messages, &rendering, &mut ignored)?;
            encode_messages(model, &messages, &rendering, truncation)?
        }
    };
    params.prompt = prompt.tokens;
    if let Some(truncation) = truncation {
        truncation.truncate(&mut params.prompt, model.context, params.limits.max_tokens);
    }
    let continued = messages.last().filter(|_| ending == Ending::Continue);
    let limits = chat.thinking.limits()?;
    let mut reader =
        read_output(model, &mut params, &mut form, continued, prompt.end, tools.as_ref(), limits);
    reader.omits_reasoning = chat.thinking.omits_reasoning();
    if !separate && !reader.omits_reasoning {
        reader.keep_reasoning();
    }
    model.check(&params)?;
    let lists_prompt = params.prompt_scores.is_some();
    let requests = vec![params];
    check_total_alternatives(
        model,
        &requests,
        if lists_prompt { "prompt_logprobs" } else { "top_logprobs" },
    )?;
    let timing_options = common.timing_options();
    let usage = common.stream_options.unwrap_or_default().usage();
    let echo = continued.filter(|_| chat.echo).map(|message| message.content.clone());
    let echo = echo.into_iter().collect();
    let mut answer = Answer::new(model, common.model, Shape::Chat, &requests, usage, echo);
    answer.parse_output(&reader);
    answer.set_timing_options(timing_options);
    let prompts = || requests.iter().map(|params| params.prompt.clone()).collect::<Vec<_>>();
    if lists_prompt {
        answer.include_prompt_scores();
    }
    if chat.return_token_ids {
        answer.include_token_ids(prompts(), scored);
    }
    if chat.verbose {
        answer.include_prompts(&prompts());
    }
    if chat.return_tokens_as_token_ids {
        answer.name_tokens_by_id();
    }
    Ok(Prepared { requests, form, answer, stream: common.stream, ignored })
}

/// Ending of the rendered prompt.
///
/// # Errors
/// Both a generation prompt and a message to continue.
fn ending(continues: bool, generation_prompt: Option<bool>) -> Result<Ending, Problem> {
    match (continues, generation_prompt) {
        (true, Some(true)) => {
            let problem = "continue_final_message has no generation prompt: expected \
                           add_generation_prompt to be false";
            Err(Problem::invalid(problem).with_param("continue_final_message"))
        }
        (true, _) => Ok(Ending::Continue),
        (false, Some(false)) => Ok(Ending::Message),
        (false, _) => Ok(Ending::Answer),
    }
}

/// Returns whether to separate reasoning from the answer.
fn parse_reasoning_format(format: Option<&str>) -> Result<bool, Problem> {
    match format {
        None | Some("auto" | "deepseek") => Ok(true),
        Some("none") => Ok(false),
        Some(got) => {
            let problem = format!("reasoning_format: expected auto, deepseek or none, got {got:?}");
            Err(Problem::invalid(problem).with_param("reasoning_format"))
        }
    }
}
