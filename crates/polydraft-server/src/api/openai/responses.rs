//! `/v1/responses`: answers to conversations in OpenAI's newer form. Answers are stored for a
//! while, so that later requests can continue them.

mod response;
pub mod store;
mod stored;

use axum::http::StatusCode;
use polydraft_engine::Alternatives;
use polydraft_text::{Ending, Message, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::shared::alternatives::check_top_logprobs;
use crate::api::shared::answer::{Answer, Shape, StreamUsage};
use crate::api::shared::conversation::{encode_messages, read_output};
use crate::api::shared::error::Problem;
use crate::api::shared::fields::check_unread_fields;
use crate::api::shared::format;
use crate::api::shared::messages::{CallNames, Content, message_with_role};
use crate::api::shared::omitted::name_omitted;
use crate::api::shared::params::Common;
use crate::api::shared::read::read;
use crate::api::shared::rest::ignored_params;
use crate::api::shared::thinking::Thinking;
use crate::api::shared::tools::{ToolForm, ToolParams, prepare_tools};
use crate::api::shared::values::{Limit, limit, null_is_default};
use response::Response;
pub use stored::{delete_stored, get_stored};

/// Parameters of responses only. Of the common parameters, `n`, `response_format`, `stream_options`
/// and `steps` are not supported.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Responses {
    /// A string, or a list of messages.
    #[schema(value_type = String)]
    input: Option<Value>,
    /// Id of a stored answer to continue. Its conversation precedes the input.
    previous_response_id: Option<String>,
    /// Whether to store the answer, so that later requests can continue it. Default: true.
    store: Option<bool>,
    /// System message before the input.
    instructions: Option<String>,
    /// Maximum tokens of the answer. Default: the server's setting, else up to the end of the
    /// context.
    #[serde(default, deserialize_with = "limit")]
    #[schema(value_type = Option<i64>)]
    max_output_tokens: Option<Limit>,
    /// `{"format": ..}`: `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema",
    /// "name": .., "schema": ..}`.
    #[schema(value_type = Option<Object>)]
    text: Option<TextOptions>,
    /// Tools that the model may call: `{"type": "function", "name": .., "description": ..,
    /// "parameters": .., "strict": ..}`.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// `"auto"`, `"none"`, `"required"`, or `{"type": "function", "name": ..}`. Default: auto.
    #[schema(value_type = Option<Object>)]
    tool_choice: Option<Value>,
    /// Whether an answer may have several calls. Default: true.
    parallel_tool_calls: Option<bool>,
    /// `["message.output_text.logprobs"]` returns every token's log-probability at temperature 1.
    include: Option<Vec<String>>,
    /// Number of likeliest alternatives to list with each token.
    top_logprobs: Option<usize>,
    /// `{"effort": ..}`, equivalent to `reasoning_effort` of conversations.
    #[schema(value_type = Option<Object>)]
    reasoning: Option<Reasoning>,
    #[serde(flatten)]
    thinking: Thinking,
    /// vLLM's parameter: whether to return prompt and output as text and tokens, with special
    /// tokens, in `input_messages` and `output_messages`.
    #[serde(default, deserialize_with = "null_is_default")]
    enable_response_messages: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// Reasoning effort. A summary of the reasoning is not supported.
#[derive(Debug, Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

/// A message, reasoning, a call, or a tool's result.
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

/// Types of items that are read, and their fields. Templates leave out earlier reasoning.
const ITEMS: [(&str, &[&str]); 4] = [
    ("message", &["role", "content"]),
    ("reasoning", &["summary", "content", "encrypted_content"]),
    ("function_call", &["call_id", "name", "arguments"]),
    ("function_call_output", &["call_id", "name", "output"]),
];

/// Types of parts that are text.
const PARTS: [&str; 3] = ["input_text", "output_text", "text"];

/// Names fields of an item that are not read.
///
/// # Errors
/// With `strict`, the first of them.
fn check_item(
    item: &Value,
    kind: &str,
    param: &str,
    strict: bool,
    ignored: &mut Vec<String>,
) -> Result<(), Problem> {
    let Some((_, known)) = ITEMS.iter().find(|(name, _)| *name == kind) else { return Ok(()) };
    let fields = item.as_object().into_iter().flatten();
    let rest = fields.filter(|(name, _)| *name != "type" && !known.contains(&name.as_str()));
    let rest = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
    check_unread_fields(&rest, param, strict, ignored)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    format: Option<Value>,
    // Not used by chat templates.
    verbosity: Option<String>,
}

/// Prepares a request in the same way as conversations.
///
/// # Errors
/// An invalid request.
pub fn prepare(model: &LoadedModel, body: Value) -> Result<Prepared<Response>, Problem> {
    let mut common: Common = read(body)?;
    for name in ["text", "reasoning"] {
        if let Some(Value::Object(members)) = common.rest.get_mut(name) {
            members.retain(|_, value| !value.is_null());
        }
    }
    let request: Responses = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let mut ignored = ignored_params(&request.rest, model.options.strict)?;
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
            return Err(problem.with_param(param).with_code("unsupported_parameter"));
        }
    }
    let text = request.text.unwrap_or_default();
    if text.verbosity.is_some() {
        let name = "text.verbosity";
        if model.options.strict {
            let problem = Problem::invalid(format_args!("the parameter {name:?} is not supported"));
            return Err(problem.with_param(name).with_code("unsupported_parameter"));
        }
        ignored.push(name.to_owned());
    }
    let format = text.format;
    let form =
        format::form_from_format(format.clone().map(to_chat_format).as_ref(), "text.format")?;
    let (truncation, timing_options) = (common.truncation(model)?, common.timing_options());
    let mut params = common.request_params(model, &model.chat, request.max_output_tokens)?;
    let scores = requested_scores(request.include.as_deref(), request.top_logprobs)?;
    params.scores = params.scores.or(scores.map(Into::into));
    let scored = params.scores.is_some();
    if request.enable_response_messages {
        // Tokens are sent with their scores.
        params.scores.get_or_insert(Alternatives::Likeliest(0));
    }
    let mut messages: Vec<Message> = request.instructions.iter().map(Message::system).collect();
    let previous = request.previous_response_id.as_deref();
    let items = collect_items(model, request.input, previous)?;
    append_items(model, &mut messages, &items, &mut ignored)?;
    if messages.len() == request.instructions.iter().len() {
        let left_out: Vec<&str> =
            ignored.iter().map(|name| &**name).filter(|name| name.starts_with("input[")).collect();
        let left_out = match left_out.is_empty() {
            true => String::new(),
            false => format!("; left out: {}", left_out.join(", ")),
        };
        let problem = format!("input: expected at least one message{left_out}");
        return Err(Problem::invalid(problem).with_param("input"));
    }
    let settings = json!({
        "instructions": request.instructions,
        "max_output_tokens": params.limits.max_tokens,
        "temperature": params.sampling.temperature,
        "top_p": params.sampling.top_p,
        "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
        "user": common.user,
        "metadata": common.metadata.unwrap_or_default(),
        "tools": request.tools.clone().unwrap_or_default(),
        "tool_choice": request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
    });
    let listed = request.tools.map(|tools| tools.into_iter().map(nest_function).collect());
    let choice = request.tool_choice.map(nest_function);
    let (parallel, form_shown) = (request.parallel_tool_calls, ToolForm::Flat);
    let tool_params = ToolParams { tools: listed, choice, parallel, form: form_shown };
    let tools = prepare_tools(model, tool_params, form.as_ref(), &mut ignored);
    // Tools are not nested in this form: adapt the path.
    let tools = tools.map_err(|problem| match problem.error.param.clone() {
        Some(param) => {
            let mut problem = problem.with_param(&param.replace(".function", ""));
            problem.error.message = problem.error.message.replace("].function.", "].");
            problem
        }
        None => problem,
    })?;
    let effort = request.reasoning.and_then(|reasoning| reasoning.effort);
    let mut form = match &tools {
        Some(tools) => tools.grammar.clone(),
        None => form,
    };
    let model_name = common.model.clone().unwrap_or_else(|| model.name().to_owned());
    let storage = request.store.unwrap_or(true).then(|| (model.stored_responses.clone(), items));
    let thinking = request.thinking.or_effort(effort);
    thinking.name_without_effect(model, &mut ignored)?;
    let variables = thinking.variables();
    let listed = tools.as_ref().map_or(&[][..], |tools| &tools.listed);
    let rendering =
        Rendering { tools: listed, variables: Some(&variables), ending: Ending::Answer };
    name_omitted(model, &messages, &rendering, &mut ignored)?;
    let prompt = encode_messages(model, &messages, &rendering, truncation)?;
    params.prompt = prompt.tokens;
    if let Some(truncation) = truncation {
        truncation.truncate(&mut params.prompt, model.context, params.limits.max_tokens);
    }
    let mut reader = read_output(
        model,
        &mut params,
        &mut form,
        None,
        prompt.end,
        tools.as_ref(),
        thinking.limits()?,
    );
    reader.omits_reasoning = thinking.omits_reasoning();
    model.check(&params)?;
    let prompt = request.enable_response_messages.then(|| params.prompt.clone());
    let requests = vec![params];
    let (usage, echo) = (StreamUsage::Never, Vec::new());
    let mut answer = Answer::new(model, common.model, Shape::Chat, &requests, usage, echo);
    answer.parse_output(&reader);
    answer.set_timing_options(timing_options);
    let previous = request.previous_response_id;
    let mut answer = Response::new(answer, model_name, settings, previous, storage);
    answer.include_tokens(prompt, scored);
    Ok(Prepared { requests, form, answer, stream: common.stream, ignored })
}

/// Items of the conversation: those up to the previous answer, then the input's.
///
/// # Errors
/// No input; a previous answer that is not stored (any longer).
fn collect_items(
    model: &LoadedModel,
    input: Option<Value>,
    previous: Option<&str>,
) -> Result<Vec<Value>, Problem> {
    let mut items = match previous {
        None => Vec::new(),
        Some(id) => model.stored_responses.get(id).map(|stored| stored.items).ok_or_else(|| {
            let problem = format!("no stored answer {id:?}: send the conversation in the input");
            let problem = Problem::invalid(problem).with_param("previous_response_id");
            problem.with_code("previous_response_not_found").with_status(StatusCode::NOT_FOUND)
        })?,
    };
    match input {
        None => return Err(Problem::invalid("the parameter input is missing").with_param("input")),
        Some(Value::Array(more)) => items.extend(more),
        Some(text @ Value::String(_)) => {
            items.push(json!({ "type": "message", "role": "user", "content": text }))
        }
        Some(_) => {
            let problem = "input: expected a string or a list of messages";
            return Err(Problem::invalid(problem).with_param("input"));
        }
    }
    Ok(items)
}

/// Number of alternatives, if log-probabilities are requested.
fn requested_scores(
    include: Option<&[String]>,
    top: Option<usize>,
) -> Result<Option<usize>, Problem> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    // Reasoning is never encrypted: nothing to include.
    const REASONING: &str = "reasoning.encrypted_content";
    let include: Vec<&String> =
        include.unwrap_or_default().iter().filter(|name| *name != REASONING).collect();
    if let Some(other) = include.iter().find(|name| **name != LOGPROBS) {
        let problem = format!("include: expected {LOGPROBS:?}, got {other:?}");
        return Err(Problem::invalid(problem)
            .with_param("include")
            .with_code("unsupported_parameter"));
    }
    match (include.is_empty(), top) {
        (true, None | Some(0)) => Ok(None),
        (true, Some(_)) => {
            let problem = format!("top_logprobs needs {LOGPROBS:?} in include");
            Err(Problem::invalid(problem).with_param("top_logprobs"))
        }
        (false, top) => check_top_logprobs("top_logprobs", top.unwrap_or(0)).map(Some),
    }
}

/// Converts a tool or a choice to the form of conversations, with all fields but the type nested in
/// `function`. Other values are not changed.
fn nest_function(value: Value) -> Value {
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

/// Appends items to the messages.
fn append_items(
    model: &LoadedModel,
    messages: &mut Vec<Message>,
    items: &[Value],
    ignored: &mut Vec<String>,
) -> Result<(), Problem> {
    let mut call_names = CallNames::default();
    for (number, item) in items.iter().enumerate() {
        let param = |field: &str| format!("input[{number}].{field}");
        let missing =
            |field: &str| Problem::invalid(format!("{field} is missing")).with_param(&param(field));
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message");
        // Codex sends outputs of its own functions, which answer no call, with their names.
        let is_known = match kind {
            "message" | "reasoning" | "function_call" => true,
            "function_call_output" => item.get("call_id").is_some() || item.get("name").is_none(),
            _ => false,
        };
        if !is_known && !model.options.strict {
            // Calls that a provider runs, and their results.
            ignored.push(format!("input[{number}] ({kind})"));
            continue;
        }
        let strict = model.options.strict;
        check_item(item, kind, &format!("input[{number}]"), strict, ignored)?;
        // A tool may return nothing.
        let has_output = item.get("output").is_some();
        let item =
            read(item.clone()).map_err(|problem| problem.in_object(&format!("input[{number}]")))?;
        let Item { kind, role, content, call_id, name, arguments, output } = item;
        let kind = kind.unwrap_or_else(|| "message".to_owned());
        match kind.as_str() {
            "message" => {
                let content = content.ok_or_else(|| missing("content"))?;
                content.check_parts(&PARTS, &param("content"), strict, ignored)?;
                let text = content.text(&PARTS, &param("content"))?;
                let role = role.ok_or_else(|| missing("role"))?;
                let message = message_with_role(&role, text, &param("role"))?;
                let is_answer = |last: &&mut Message| {
                    message.role == "assistant" && !last.tool_calls.is_empty()
                };
                match messages.last_mut().filter(is_answer) {
                    // Text after a call, of the same answer.
                    Some(last) => last.content.push_str(&message.content),
                    None => messages.push(message),
                }
            }
            // Current chat templates omit earlier reasoning.
            "reasoning" => {}
            "function_call" => {
                let (id, name) = (
                    call_id.ok_or_else(|| missing("call_id"))?,
                    name.ok_or_else(|| missing("name"))?,
                );
                let call = call_names.call(id, name, arguments.unwrap_or_default());
                // Calls of one answer belong to one message, after its text.
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
                let output = match output {
                    Some(output) => {
                        output.check_parts(&["input_text"], &param("output"), strict, ignored)?;
                        output.text(&["input_text"], &param("output"))?
                    }
                    None if has_output => String::new(),
                    None => return Err(missing("output")),
                };
                messages
                    .push(call_names.answer(output, call_id.ok_or_else(|| missing("call_id"))?));
            }
            _ => {
                let expected = "message, function_call or function_call_output";
                let problem =
                    format!("expected items of type {expected}, got one of type {kind:?}");
                return Err(Problem::invalid(problem)
                    .with_param(&param("type"))
                    .with_code("unsupported_parameter"));
            }
        }
    }
    Ok(())
}

/// Converts a format to the form of conversations.
fn to_chat_format(mut format: Value) -> Value {
    if format["type"] != "json_schema" {
        return format;
    }
    let kind = format.as_object_mut().and_then(|object| object.shift_remove("type"));
    json!({ "type": kind, "json_schema": format })
}
