//! Requests of Ollama's `/api/chat` and `/api/generate`, translated into requests of
//! `/v1/chat/completions` and `/v1/completions`. Fields without a translation are passed on, and
//! ignored or rejected there.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::{Kind, LinesReply};
use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::openai::{chat, completions};
use crate::api::shared::error::Problem;
use crate::api::shared::fields::check_unread_fields;
use crate::api::shared::messages::media_problem;
use crate::api::shared::read::read;

/// Fields of both routes; `rest` is passed on unchanged.
#[derive(Deserialize)]
struct Common {
    model: Option<String>,
    stream: Option<bool>,
    format: Option<Value>,
    options: Option<Map<String, Value>>,
    think: Option<Value>,
    #[serde(rename = "keep_alive")]
    _keep_alive: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Option<Vec<InputMessage>>,
    tools: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct InputMessage {
    role: String,
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    images: Option<Vec<Value>>,
    tool_name: Option<String>,
    tool_call_id: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct ToolCall {
    id: Option<String>,
    #[serde(rename = "type")]
    _kind: Option<String>,
    function: Function,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Value,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Generate {
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    images: Option<Vec<Value>>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Prepares a request of `/api/chat`.
///
/// # Errors
/// An invalid request.
pub fn prepare_chat(model: &LoadedModel, body: Value) -> Result<Prepared<LinesReply>, Problem> {
    let mut common: Common = read(body)?;
    let request: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let mut ignored = Vec::new();
    let messages = request.messages.unwrap_or_default();
    let messages = translate_messages(messages, model.options.strict, &mut ignored)?;
    let model_name = common.model.clone().unwrap_or_else(|| model.name().to_owned());
    let mut body = translate(common, request.rest)?;
    ignored.extend(take_scores(&mut body));
    body["messages"] = messages.into();
    if let Some(tools) = request.tools {
        body["tools"] = tools;
    }
    let mut prepared = chat::prepare(model, body)
        .map_err(in_ollamas_names)?
        .map_answer(|answer| LinesReply::new(answer, model_name, Kind::Chat));
    prepared.ignored.extend(ignored);
    Ok(prepared)
}

/// Removes the parameters of log-probabilities, which answers have no field for. Returns their
/// names.
fn take_scores(body: &mut Value) -> Vec<String> {
    let names = ["logprobs", "top_logprobs"];
    let given = names.iter().filter(|name| body.get(**name).is_some_and(|v| !is_off(v)));
    let given = given.map(|name| (*name).to_owned()).collect();
    if let Some(members) = body.as_object_mut() {
        names.iter().for_each(|name| drop(members.remove(*name)));
    }
    given
}

/// Whether a value asks for nothing.
fn is_off(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false)) || value.as_u64() == Some(0)
}

/// Prepares a request of `/api/generate`.
///
/// # Errors
/// An invalid request.
pub fn prepare_generate(model: &LoadedModel, body: Value) -> Result<Prepared<LinesReply>, Problem> {
    let mut common: Common = read(body)?;
    let request: Generate = read(Value::Object(std::mem::take(&mut common.rest)))?;
    if request.images.is_some_and(|images| !images.is_empty()) {
        return Err(images("images"));
    }
    let model_name = common.model.clone().unwrap_or_else(|| model.name().to_owned());
    let mut body = translate(common, request.rest)?;
    let ignored = take_scores(&mut body);
    let prompt = request.prompt.unwrap_or_default();
    let lines = |answer| LinesReply::new(answer, model_name, Kind::Generate);
    if request.raw == Some(true) || model.language.chat.is_none() {
        body["prompt"] = prompt.into();
        let mut prepared =
            completions::prepare(model, body).map_err(in_ollamas_names)?.map_answer(lines);
        prepared.ignored.extend(ignored);
        return Ok(prepared);
    }
    let system = request.system.map(|system| json!({ "role": "system", "content": system }));
    let user = json!({ "role": "user", "content": prompt });
    body["messages"] = system.into_iter().chain([user]).collect();
    let mut prepared = chat::prepare(model, body).map_err(in_ollamas_names)?.map_answer(lines);
    prepared.ignored.extend(ignored);
    Ok(prepared)
}

/// Translates the fields of both routes. Options that the server decides on, such as the context
/// and the threads, are passed on too, and named there.
///
/// # Errors
/// A format that is neither JSON nor a schema.
fn translate(common: Common, rest: Map<String, Value>) -> Result<Value, Problem> {
    let Common { model, stream, format, options, think, .. } = common;
    let mut body = rest;
    for (name, value) in options.into_iter().flatten() {
        match name.as_str() {
            "num_predict" => {
                // -2 fills the context.
                let value = if value == -2 { Value::from(-1) } else { value };
                body.insert("max_tokens".to_owned(), value);
            }
            _ => drop(body.insert(name, value)),
        }
    }
    body.insert("stream".to_owned(), stream.unwrap_or(true).into());
    if let Some(model) = model {
        body.insert("model".to_owned(), model.into());
    }
    match format {
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) if text == "json" => {
            body.insert("response_format".to_owned(), json!({ "type": "json_object" }));
        }
        Some(schema @ Value::Object(_)) => {
            let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
            body.insert("response_format".to_owned(), format);
        }
        None => {}
        Some(other) => {
            let problem = format!("format: expected \"json\" or a JSON schema, got {other}");
            return Err(Problem::invalid(problem).with_param("format"));
        }
    }
    match think {
        Some(Value::Bool(think)) => {
            body.insert("enable_thinking".to_owned(), think.into());
        }
        Some(effort @ Value::String(_)) => drop(body.insert("reasoning_effort".to_owned(), effort)),
        _ => {}
    }
    Ok(Value::Object(body))
}

/// A problem of a translated parameter, with the name that clients of Ollama's know.
fn in_ollamas_names(mut problem: Problem) -> Problem {
    let names = [("max_tokens", "options.num_predict"), ("response_format", "format")];
    let param = problem.error.param.as_deref();
    if let Some((name, given)) = names.iter().find(|(name, _)| Some(*name) == param) {
        problem.error.message = problem.error.message.replacen(name, given, 1);
        return problem.with_param(given);
    }
    problem
}

fn images(param: &str) -> Problem {
    media_problem("image", param)
}

/// Translates messages. Calls without ids get some, and results of tools refer to them in order.
fn translate_messages(
    messages: Vec<InputMessage>,
    strict: bool,
    ignored: &mut Vec<String>,
) -> Result<Vec<Value>, Problem> {
    let (mut calls, mut answered) = (Vec::new(), 0);
    let translate = |(number, message): (usize, InputMessage)| {
        let InputMessage { role, content, thinking, tool_calls, images: attached, .. } = message;
        let path = format!("messages[{number}]");
        let mut rest = message.rest;
        if role != "tool" {
            let of_results =
                [("tool_name", &message.tool_name), ("tool_call_id", &message.tool_call_id)];
            let given =
                of_results.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
            rest.extend(given.map(|(name, value)| (name.to_owned(), value.into())));
        }
        check_unread_fields(&rest, &path, strict, ignored)?;
        if attached.is_some_and(|images| !images.is_empty()) {
            return Err(images(&format!("messages[{number}].images")));
        }
        let mut output = json!({ "role": role, "content": content.unwrap_or_default() });
        if let Some(thinking) = thinking {
            output["reasoning_content"] = thinking.into();
        }
        if role == "tool" {
            let in_order = || calls.get(answered).cloned();
            let id = message.tool_call_id.or_else(in_order);
            output["tool_call_id"] = id.unwrap_or_else(|| format!("call_{answered}")).into();
            answered += 1;
            if let Some(name) = message.tool_name {
                output["name"] = name.into();
            }
        }
        let mut called = Vec::new();
        for (call, ToolCall { id, function, rest, .. }) in
            tool_calls.into_iter().flatten().enumerate()
        {
            let path = format!("{path}.tool_calls[{call}]");
            check_unread_fields(&rest, &path, strict, ignored)?;
            check_unread_fields(&function.rest, &format!("{path}.function"), strict, ignored)?;
            let id = id.unwrap_or_else(|| format!("call_{}", calls.len()));
            calls.push(id.clone());
            let Function { name, arguments, .. } = function;
            let function = json!({ "name": name, "arguments": arguments.to_string() });
            called.push(json!({ "id": id, "type": "function", "function": function }));
        }
        if !called.is_empty() {
            output["tool_calls"] = called.into();
        }
        Ok(output)
    };
    messages.into_iter().enumerate().map(translate).collect()
}
