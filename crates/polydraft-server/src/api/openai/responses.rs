//! `/v1/responses`: answers to conversations in the newer form. Answers are stored for a while, so
//! that the next request can refer to them.

mod response;
pub mod store;
mod stored;

use axum::http::StatusCode;
use polydraft_engine::Alternatives;
use polydraft_text::{Ending, Message, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::App;
use crate::api::Prepared;
use crate::api::shared::alternatives::few_alternatives;
use crate::api::shared::answer::{Answer, Shape, UsageTold};
use crate::api::shared::conversation::{encode, separate_reasoning};
use crate::api::shared::error::Problem;
use crate::api::shared::format;
use crate::api::shared::messages::{Calling, Content, left_out, message, variables};
use crate::api::shared::params::Common;
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored;
use crate::api::shared::tools::{self, tools};
use crate::api::shared::values::null_is_default;
use response::Response;
pub use stored::{forget, stored};

/// Parameters of responses alone. Of the common ones `n`, `response_format`, `stream_options` and
/// `steps` are of other routes.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Responses {
    /// A string, or a list of messages.
    #[schema(value_type = String)]
    input: Option<Value>,
    /// The id of an answer that this goes on with: what was said before comes before the input.
    previous_response_id: Option<String>,
    /// Whether the answer is stored, so that others can go on with it. Default: yes.
    store: Option<bool>,
    /// The system message before the input.
    instructions: Option<String>,
    /// Tokens of the answer at most. Default: as the server was started, else up to the end of the
    /// context.
    max_output_tokens: Option<usize>,
    /// `{"format": ..}`: `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema",
    /// "name": .., "schema": ..}`.
    #[schema(value_type = Option<Object>)]
    text: Option<TextOptions>,
    /// What the model may call: `{"type": "function", "name": .., "description": .., "parameters":
    /// .., "strict": ..}`.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `"auto"`, `"none"`, `"required"`, or `{"type": "function", "name": ..}`. Default: auto.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether there may be several calls in an answer. Default: yes.
    parallel_tool_calls: Option<bool>,
    /// `["message.output_text.logprobs"]` for every token's log-probability at temperature 1.
    include: Option<Vec<String>>,
    /// With each, so many of the likeliest alternatives.
    top_logprobs: Option<usize>,
    /// `{"effort": ..}`, as `reasoning_effort` of conversations.
    #[schema(value_type = Option<Object>)]
    reasoning: Option<Reasoning>,
    /// Variables for the model's chat template, such as `{"enable_thinking": false}`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// vLLM's: whether the answer has the prompt and the output as text and tokens, special ones
    /// included, as `input_messages` and `output_messages`.
    #[serde(default, deserialize_with = "null_is_default")]
    enable_response_messages: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// How much the model should think; a summary is never there.
#[derive(Debug, Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

/// A message, reasoning, a call or a tool's answer. Those that were answers come back with an id, a
/// status and the like.
#[derive(Debug, Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    format: Option<Value>,
    // For models that know of it.
    #[serde(rename = "verbosity")]
    _verbosity: Option<String>,
}

/// Prepares a request, as those of conversations.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: Value) -> Result<Prepared<Response>, Problem> {
    let mut common: Common = read(body)?;
    for name in ["text", "reasoning"] {
        if let Some(Value::Object(members)) = common.rest.get_mut(name) {
            members.retain(|_, value| !value.is_null());
        }
    }
    let own: Responses = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let mut ignored = ignored(&own.rest, app.options.strict)?;
    for (param, given) in [
        ("n", common.n.is_some_and(|n| n != 1)),
        ("response_format", common.response_format.is_some()),
        (
            "stream_options",
            common.stream_options.as_ref().is_some_and(|options| !options.is_neutral()),
        ),
        ("steps", common.steps.is_some()),
    ] {
        if given {
            let problem = Problem::invalid(format_args!(
                "the parameter {param:?} is not supported on this route"
            ));
            return Err(problem.of(param).code("unsupported_parameter"));
        }
    }
    let format = own.text.and_then(|text| text.format);
    let form = format::in_format(format.clone().map(as_in_chat).as_ref(), "text.format")?;
    let (truncation, tells) = (common.truncation(app)?, common.tells());
    let mut params = common.request_params(app, &app.chat, own.max_output_tokens)?;
    let scores = scores(own.include.as_deref(), own.top_logprobs)?;
    params.scores = params.scores.or(scores.map(Into::into));
    let scored = params.scores.is_some();
    if own.enable_response_messages {
        // Tokens come with their scores.
        params.scores.get_or_insert(Alternatives::Likeliest(0));
    }
    let mut messages: Vec<Message> = own.instructions.iter().map(Message::system).collect();
    let previous = own.previous_response_id.as_deref();
    let items = items(app, own.input, previous)?;
    conversation(app, &mut messages, &items)?;
    let settings = json!({
        "instructions": own.instructions,
        "max_output_tokens": params.limits.max_tokens,
        "temperature": params.sampling.temperature,
        "top_p": params.sampling.top_p,
        "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
        "user": common.user,
        "metadata": common.metadata.unwrap_or_default(),
        "tools": own.tools.clone().unwrap_or_default(),
        "tool_choice": own.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        "parallel_tool_calls": own.parallel_tool_calls.unwrap_or(true),
    });
    let listed = own.tools.map(|tools| tools.into_iter().map(nested).collect());
    let choice = own.tool_choice.map(nested);
    let tools = tools(app, listed, choice, own.parallel_tool_calls, form.as_ref());
    // They are not nested here.
    let tools = tools.map_err(|problem| match problem.error.param.clone() {
        Some(param) => problem.of(&param.replace(".function", "")),
        None => problem,
    })?;
    let effort = own.reasoning.and_then(|reasoning| reasoning.effort);
    let mut form = match &tools {
        Some(tools) => tools.grammar.clone(),
        None => form,
    };
    let model = common.model.clone().unwrap_or_else(|| app.name().to_owned());
    let keeping = own.store.unwrap_or(true).then(|| (app.stored.clone(), items));
    let variables = variables(own.chat_template_kwargs, effort);
    let listed = tools.as_ref().map_or(&[][..], |tools| &tools.listed);
    let rendering =
        Rendering { tools: listed, variables: Some(&variables), ending: Ending::Answer };
    ignored.extend(left_out(app, &messages, &rendering)?);
    let prompt = encode(app, &messages, &rendering, truncation)?;
    params.prompt = prompt.tokens;
    if let Some(truncation) = truncation {
        truncation.cut(&mut params.prompt, app.context, params.limits.max_tokens);
    }
    let reasoning = separate_reasoning(app, &mut params, &mut form, None, prompt.in_reasoning);
    app.check(&params)?;
    let prompt = own.enable_response_messages.then(|| params.prompt.clone());
    let requests = vec![params];
    let (usage, echo) = (UsageTold::Never, Vec::new());
    let mut answer = Answer::new(app, common.model, Shape::Chat, &requests, usage, echo);
    if let Some(tools) = &tools {
        answer.reads_calls(|| tools.calls());
    }
    if let Some(reasoning) = reasoning {
        answer.reads_reasoning(|| reasoning.clone());
    }
    answer.tells(tells);
    let previous = own.previous_response_id;
    let mut answer = Response::new(answer, model, settings, previous, keeping);
    answer.tells_tokens(prompt, scored);
    Ok(Prepared { requests, form, answer, stream: common.stream, ignored })
}

/// The items of the conversation: those up to the previous answer, and the input's.
///
/// # Errors
/// No input; a previous answer that is not stored here, or no longer.
fn items(app: &App, input: Option<Value>, previous: Option<&str>) -> Result<Vec<Value>, Problem> {
    let mut items = match previous {
        None => Vec::new(),
        Some(id) => app.stored.get(id).map(|stored| stored.items).ok_or_else(|| {
            let problem = format!(
                "there is no answer {id:?} here, or no longer: send the conversation in the input"
            );
            let problem = Problem::invalid(problem).of("previous_response_id");
            problem.code("previous_response_not_found").status(StatusCode::NOT_FOUND)
        })?,
    };
    match input {
        None => return Err(Problem::invalid("the parameter input is missing").of("input")),
        Some(Value::Array(more)) => items.extend(more),
        Some(text @ Value::String(_)) => {
            items.push(json!({ "type": "message", "role": "user", "content": text }))
        }
        Some(_) => {
            let problem = "input: expected a string or a list of messages";
            return Err(Problem::invalid(problem).of("input"));
        }
    }
    Ok(items)
}

/// Log-probabilities, if they are asked for, with so many of the likeliest alternatives.
fn scores(include: Option<&[String]>, top: Option<usize>) -> Result<Option<usize>, Problem> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    // There is none: nothing to add.
    const REASONING: &str = "reasoning.encrypted_content";
    let include: Vec<&String> =
        include.unwrap_or_default().iter().filter(|what| *what != REASONING).collect();
    if let Some(other) = include.iter().find(|what| **what != LOGPROBS) {
        let problem = format!("include: expected {LOGPROBS:?}, got {other:?}");
        return Err(Problem::invalid(problem).of("include").code("unsupported_parameter"));
    }
    match (include.is_empty(), top) {
        (true, None | Some(0)) => Ok(None),
        (true, Some(_)) => {
            let problem = format!("top_logprobs has no meaning without {LOGPROBS:?} in include");
            Err(Problem::invalid(problem).of("top_logprobs"))
        }
        (false, top) => few_alternatives("top_logprobs", top.unwrap_or(0)).map(Some),
    }
}

/// A tool or a choice as conversations write it: all but its type is the function's. What is no
/// function stays as it is.
fn nested(value: Value) -> Value {
    let Some(object) =
        value.as_object().filter(|object| object.get("type").is_some_and(|t| t == "function"))
    else {
        return value;
    };
    let function: Map<String, Value> = object
        .iter()
        .filter(|(name, _)| *name != "type")
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    json!({ "type": "function", "function": function })
}

/// Adds items to messages.
fn conversation(app: &App, messages: &mut Vec<Message>, items: &[Value]) -> Result<(), Problem> {
    let mut calling = Calling::default();
    for (number, item) in items.iter().enumerate() {
        let param = |field: &str| format!("input[{number}].{field}");
        let missing =
            |field: &str| Problem::invalid(format!("{field} is missing")).of(&param(field));
        let item = read(item.clone()).map_err(|problem| problem.of(&format!("input[{number}]")))?;
        let Item { kind, role, content, call_id, name, arguments, output } = item;
        let kind = kind.unwrap_or_else(|| "message".to_owned());
        if kind == "function_call" || kind == "function_call_output" {
            tools::form(app).map_err(|problem| problem.of(&param("type")))?;
        }
        match kind.as_str() {
            "message" => {
                let content = content.ok_or_else(|| missing("content"))?;
                let text =
                    content.text(&["input_text", "output_text", "text"], &param("content"))?;
                messages.push(message(
                    &role.ok_or_else(|| missing("role"))?,
                    text,
                    &param("role"),
                )?);
            }
            // What the model thought: templates of today leave it out of what comes next.
            "reasoning" => {}
            "function_call" => {
                let (id, name) = (
                    call_id.ok_or_else(|| missing("call_id"))?,
                    name.ok_or_else(|| missing("name"))?,
                );
                let call = calling.call(id, name, arguments.unwrap_or_default());
                // Calls of one answer are in one message, after its text.
                match messages.last_mut().filter(|last| last.role == "assistant") {
                    Some(last) => last.tool_calls.push(call),
                    None => {
                        let mut answer = Message::assistant("");
                        answer.tool_calls.push(call);
                        messages.push(answer);
                    }
                }
            }
            "function_call_output" => {
                let output = output
                    .ok_or_else(|| missing("output"))?
                    .text(&["input_text"], &param("output"))?;
                messages.push(calling.answer(output, call_id.ok_or_else(|| missing("call_id"))?));
            }
            _ => {
                let expected = "message, function_call or function_call_output";
                let problem =
                    format!("expected items of type {expected}, got one of type {kind:?}");
                return Err(Problem::invalid(problem)
                    .of(&param("type"))
                    .code("unsupported_parameter"));
            }
        }
    }
    Ok(())
}

/// The form of the output as conversations write it.
fn as_in_chat(mut format: Value) -> Value {
    if format["type"] != "json_schema" {
        return format;
    }
    let kind = format.as_object_mut().and_then(|object| object.shift_remove("type"));
    json!({ "type": kind, "json_schema": format })
}
