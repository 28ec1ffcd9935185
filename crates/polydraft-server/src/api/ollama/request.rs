//! Ollama's `/api/chat` and `/api/generate`, and what front ends ask besides. A request is
//! translated into one of `/v1/chat/completions` or `/v1/completions`; what these do not know is
//! ignored or refused there.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::{Kind, Lines};
use crate::App;
use crate::api::Prepared;
use crate::api::openai::{chat, completions};
use crate::api::shared::error::Problem;
use crate::api::shared::read::read;

/// What both routes have in common; all else is passed on as it is.
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
    messages: Option<Vec<Spoken>>,
    tools: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Spoken {
    role: String,
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Called>>,
    images: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Called {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Value,
}

#[derive(Deserialize)]
struct Generate {
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    images: Option<Vec<Value>>,
    #[serde(rename = "context")]
    _context: Option<Value>,
    #[serde(rename = "template")]
    _template: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Prepares a request of `/api/chat`.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare_chat(app: &App, body: Value) -> Result<Prepared<Lines>, Problem> {
    let mut common: Common = read(body)?;
    let own: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    let messages = spoken(own.messages.unwrap_or_default())?;
    let model = common.model.clone().unwrap_or_else(|| app.name().to_owned());
    let mut body = translated(common, own.rest);
    body["messages"] = messages.into();
    if let Some(tools) = own.tools {
        body["tools"] = tools;
    }
    Ok(chat::prepare(app, body)?.map_answer(|answer| Lines::new(answer, model, Kind::Chat)))
}

/// Prepares a request of `/api/generate`.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare_generate(app: &App, body: Value) -> Result<Prepared<Lines>, Problem> {
    let mut common: Common = read(body)?;
    let own: Generate = read(Value::Object(std::mem::take(&mut common.rest)))?;
    if own.images.is_some_and(|images| !images.is_empty()) {
        return Err(images("images"));
    }
    let model = common.model.clone().unwrap_or_else(|| app.name().to_owned());
    let mut body = translated(common, own.rest);
    let prompt = own.prompt.unwrap_or_default();
    let lines = |answer| Lines::new(answer, model, Kind::Generate);
    if own.raw == Some(true) || app.language.chat.is_none() {
        body["prompt"] = prompt.into();
        return Ok(completions::prepare(app, body)?.map_answer(lines));
    }
    let system = own.system.map(|system| json!({ "role": "system", "content": system }));
    let user = json!({ "role": "user", "content": prompt });
    body["messages"] = system.into_iter().chain([user]).collect();
    Ok(chat::prepare(app, body)?.map_answer(lines))
}

fn translated(common: Common, rest: Map<String, Value>) -> Value {
    let Common { model, stream, format, options, think, .. } = common;
    let mut body = rest;
    for (name, value) in options.into_iter().flatten() {
        match name.as_str() {
            // What a client says of memory and threads is the server's to decide.
            "num_ctx" | "num_thread" | "num_gpu" | "num_batch" | "num_keep" | "use_mmap"
            | "main_gpu" | "numa" | "low_vram" | "penalize_newline" => {}
            "num_predict" => {
                if value.as_i64().is_some_and(|most| most >= 0) {
                    body.insert("max_tokens".to_owned(), value);
                }
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
        Some(Value::String(_)) => {
            body.insert("response_format".to_owned(), json!({ "type": "json_object" }));
        }
        Some(schema) => {
            let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
            body.insert("response_format".to_owned(), format);
        }
        None => {}
    }
    match think {
        Some(Value::Bool(think)) => {
            body.insert("chat_template_kwargs".to_owned(), json!({ "enable_thinking": think }));
        }
        Some(effort @ Value::String(_)) => drop(body.insert("reasoning_effort".to_owned(), effort)),
        _ => {}
    }
    Value::Object(body)
}

fn images(param: &str) -> Problem {
    Problem::invalid("images are not supported").of(param).code("unsupported_parameter")
}

/// Messages as conversations have them: calls get ids, which tools answer in order.
fn spoken(messages: Vec<Spoken>) -> Result<Vec<Value>, Problem> {
    let (mut calls, mut answered) = (0, 0);
    let of = |(number, message): (usize, Spoken)| {
        let Spoken { role, content, thinking, tool_calls, images: pictures } = message;
        if pictures.is_some_and(|images| !images.is_empty()) {
            return Err(images(&format!("messages[{number}].images")));
        }
        let mut said = json!({ "role": role, "content": content.unwrap_or_default() });
        if let Some(thinking) = thinking {
            said["reasoning_content"] = thinking.into();
        }
        if role == "tool" {
            said["tool_call_id"] = format!("call_{answered}").into();
            answered += 1;
        }
        let called: Vec<Value> = tool_calls
            .into_iter()
            .flatten()
            .map(|Called { function: Function { name, arguments } }| {
                let id = format!("call_{calls}");
                calls += 1;
                let function = json!({ "name": name, "arguments": arguments.to_string() });
                json!({ "id": id, "type": "function", "function": function })
            })
            .collect();
        if !called.is_empty() {
            said["tool_calls"] = called.into();
        }
        Ok(said)
    };
    messages.into_iter().enumerate().map(of).collect()
}
