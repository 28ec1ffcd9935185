//! `/v1/chat/completions`: answers to conversations.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{Answer, Shape};
use super::error::Problem;
use super::messages::{Spoken, conversation, variables};
use super::params::{Common, MOST_TOP, null_is_default, within};
use super::read::read;
use super::rest::ignored;
use super::tools::tools;
use super::{Prepared, format, parse};
use crate::App;

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
    /// Whether to return every token's log-probability at temperature 1.
    #[serde(default, deserialize_with = "null_is_default")]
    logprobs: bool,
    /// With each, so many of the likeliest alternatives.
    top_logprobs: Option<usize>,
    /// What the model may call: `{"type": "function", "function": {"name": .., "description": ..,
    /// "parameters": .., "strict": ..}}`. With `strict` calls are as the parameters' schema says.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `"auto"`, `"none"`, `"required"`, or `{"type": "function", "function": {"name": ..}}`.
    /// Default: auto.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether there may be several calls in an answer. Default: yes.
    parallel_tool_calls: Option<bool>,
    /// Variables for the model's chat template, such as `{"enable_thinking": false}`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// How much the model should think, for templates that know of it: their variable
    /// `reasoning_effort`. `"none"` sets `enable_thinking` to false too.
    reasoning_effort: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// From a body to the engine's request, as for completions.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: &[u8]) -> Result<Prepared, Problem> {
    let mut common: Common = read(parse(body)?)?;
    let own: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let ignored = ignored(&own.rest, app.settings.strict)?;
    if own.max_tokens.is_some()
        && own.max_completion_tokens.is_some_and(|most| Some(most) != own.max_tokens)
    {
        let problem = "max_tokens is the older name of max_completion_tokens: give one of them";
        return Err(Problem::invalid(problem).of("max_tokens"));
    }
    let max_tokens = own.max_completion_tokens.or(own.max_tokens);
    let mut asked = common.asked(app, &app.chat, max_tokens)?;
    let form = format::form(common.response_format.as_ref(), "response_format")?;
    if own.top_logprobs.is_some() && !own.logprobs {
        return Err(
            Problem::invalid("top_logprobs has no meaning without logprobs").of("top_logprobs")
        );
    }
    let top =
        own.logprobs.then(|| within("top_logprobs", own.top_logprobs.unwrap_or(0), 0, MOST_TOP));
    asked.scores = top.transpose()?;
    let Some(messages) = own.messages.filter(|messages| !messages.is_empty()) else {
        return Err(Problem::invalid("the parameter messages is missing or empty").of("messages"));
    };
    let tools = tools(app, own.tools, own.tool_choice, own.parallel_tool_calls)?;
    if tools.is_some() && form.is_some() {
        let problem =
            "response_format has no meaning with tools that may be called: say tool_choice none";
        return Err(Problem::invalid(problem).of("response_format").code("unsupported_parameter"));
    }
    let (messages, listed) =
        (conversation(app, messages)?, tools.as_ref().map_or(&[][..], |t| &t.listed));
    let variables = variables(own.chat_template_kwargs, own.reasoning_effort);
    asked.prompt = app.language.encode_chat_with(&messages, listed, &variables, app.context)?;
    let form = form.or_else(|| tools.as_ref()?.grammar.clone());
    app.check(&asked)?;
    let usage = common.stream_options.unwrap_or_default().include_usage;
    let asked = vec![asked];
    let mut answer = Answer::new(app, Shape::Chat, &asked, usage, Vec::new());
    if let Some(tools) = &tools {
        answer.reads_calls(|| tools.calls());
    }
    Ok(Prepared { asked, form, answer: Box::new(answer), stream: common.stream, ignored })
}
