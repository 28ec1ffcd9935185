//! `/v1/chat/completions`: answers to conversations.

use polydraft::Token;
use polydraft_engine::Alternatives;
use polydraft_text::Ending;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::App;
use crate::api::shared::alternatives::{alternatives, check};
use crate::api::shared::answer::Answer;
use crate::api::shared::conversation::{Conversation, ReasoningMode, Wanted};
use crate::api::shared::error::Problem;
use crate::api::shared::format;
use crate::api::shared::messages::{Spoken, conversation, variables};
use crate::api::shared::params::{Common, flag, flag_or_not};
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored;
use crate::api::shared::tools::tools;
use crate::api::{Prepared, Reply};

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

/// From a body to the engine's request, as for completions.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: Value) -> Result<Prepared, Problem> {
    prepare_as(app, body, |answer| Box::new(answer))
}

/// The same with the answer in another form.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare_as(
    app: &App,
    body: Value,
    in_form: impl FnOnce(Answer) -> Box<dyn Reply>,
) -> Result<Prepared, Problem> {
    let mut common: Common = read(body)?;
    let form = format::form(&mut common)?;
    let own: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let mut ignored = ignored(&own.rest, app.settings.strict)?;
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
    let mut asked = common.asked(app, &app.chat, max_tokens)?;
    let top = own.logprobs.unwrap_or(own.top_logprobs.is_some_and(|top| top != 0));
    let top = top.then(|| alternatives(app, "top_logprobs", own.top_logprobs.unwrap_or(0)));
    asked.scores = asked.scores.or(top.transpose()?.map(Into::into));
    let scored = asked.scores.is_some();
    // Tokens come with their scores.
    asked.scores = asked.scores.or(own.return_token_ids.then_some(Alternatives::Likeliest(0)));
    let of_prompt = own.prompt_logprobs.map(|top| alternatives(app, "prompt_logprobs", top));
    asked.prompt_scores = of_prompt.transpose()?;
    let lists = asked.prompt_scores.is_some();
    let said = own.messages.as_deref().unwrap_or_default();
    let prefilled = app.settings.prefill && own.add_generation_prompt.is_none();
    let prefilled = prefilled && said.last().is_some_and(Spoken::is_answer);
    let goes_on = own.continue_final_message.unwrap_or(prefilled);
    let ending = ending(goes_on, own.add_generation_prompt)?;
    if prefilled && goes_on && said.iter().rev().take_while(|one| one.is_answer()).count() > 1 {
        let problem = "several answers at the end: expected one that is to be gone on with";
        return Err(Problem::invalid(problem).of("messages"));
    }
    let reasoning = reasoning(own.reasoning_format.as_deref())?;
    let Some(messages) = own.messages.filter(|messages| !messages.is_empty()) else {
        return Err(Problem::invalid("the parameter messages is missing or empty").of("messages"));
    };
    let tools = tools(app, own.tools, own.tool_choice, own.parallel_tool_calls, form.as_ref())?;
    let form = form.filter(|_| tools.is_none());
    let tells = common.tells();
    let wanted = Wanted {
        model: common.model,
        asked,
        messages: conversation(app, messages)?,
        tools,
        form,
        variables: variables(own.chat_template_kwargs, own.reasoning_effort),
        ending,
        reasoning,
        usage: common.stream_options.unwrap_or_default().usage(),
        echo: own.echo,
        truncation,
        prompt: transfer.and_then(|transfer| transfer.prompt_token_ids),
    };
    let mut conversation = Conversation::of(app, wanted)?;
    let param = if lists { "prompt_logprobs" } else { "top_logprobs" };
    check(app, std::slice::from_ref(&conversation.asked), param)?;
    conversation.answer.tells(tells);
    if lists {
        conversation.answer.lists_prompt_scores();
    }
    if own.return_token_ids {
        let prompt = conversation.asked.prompt.clone();
        conversation.answer.lists_token_ids(vec![prompt], scored);
    }
    if own.verbose {
        conversation.answer.tells_prompts(&[conversation.asked.prompt.clone()]);
    }
    if own.return_tokens_as_token_ids {
        conversation.answer.names_tokens_by_id();
    }
    Ok(conversation.prepared(common.stream, ignored, in_form))
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

fn reasoning(format: Option<&str>) -> Result<ReasoningMode, Problem> {
    match format {
        None | Some("auto" | "deepseek") => Ok(ReasoningMode::Apart),
        Some("none") => Ok(ReasoningMode::InText),
        Some(got) => {
            let problem = format!("reasoning_format: expected auto, deepseek or none, got {got:?}");
            Err(Problem::invalid(problem).of("reasoning_format"))
        }
    }
}
