//! Requests of `/v1/messages`, translated into requests of `/v1/chat/completions`. Fields without a
//! translation are passed on, and ignored or rejected there.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::Message;
use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::openai::chat;
use crate::api::shared::error::Problem;
use crate::api::shared::read::read;

/// Fields that are translated; `rest` is passed on unchanged.
#[derive(Deserialize)]
struct Request {
    messages: Vec<InputMessage>,
    system: Option<Blocks>,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    #[serde(rename = "metadata")]
    _metadata: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct InputMessage {
    role: String,
    content: Blocks,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of blocks")]
enum Blocks {
    Text(String),
    List(Vec<Block>),
}

#[derive(Deserialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    expecting = "a block of type text, thinking, tool_use or tool_result"
)]
enum Block {
    Text { text: String },
    Thinking { thinking: String },
    RedactedThinking {},
    ToolUse { id: String, name: String, input: Value },
    ToolResult { tool_use_id: String, content: Option<Blocks> },
}

#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    input_schema: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Choice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String },
    None {},
}

#[derive(Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<Value>,
}

/// Prepares a request by translating it into a conversation.
///
/// # Errors
/// An invalid request.
pub fn prepare(model: &LoadedModel, body: Value) -> Result<Prepared<Message>, Problem> {
    let mut request: Request = read(body)?;
    let stops = request.stop_sequences.take().unwrap_or_default();
    let model_name =
        request.rest.get("model").and_then(Value::as_str).unwrap_or(model.name()).to_owned();
    let body = translate(request, &stops)?;
    let prepared = chat::prepare(model, body)?;
    Ok(prepared.map_answer(|answer| Message::new(answer, model_name, stops, model.caches_prompts)))
}

/// Counts the tokens of a request's prompt.
///
/// # Errors
/// As for [`prepare`].
pub fn count_tokens(model: &LoadedModel, body: Value) -> Result<Value, Problem> {
    let prepared = prepare(model, body)?;
    let tokens: usize = prepared.requests.iter().map(|params| params.prompt.len()).sum();
    Ok(json!({ "input_tokens": tokens }))
}

fn translate(request: Request, stops: &[String]) -> Result<Value, Problem> {
    let Request { messages, system, tools, tool_choice, thinking, output_config, rest, .. } =
        request;
    let mut body = rest;
    let mut output = Vec::new();
    if let Some(system) = system {
        output.push(json!({ "role": "system", "content": join_text(system, "system")? }));
    }
    let continues = messages.last().is_some_and(|last| last.role == "assistant");
    for (number, InputMessage { role, content }) in messages.into_iter().enumerate() {
        translate_message(&role, content, &format!("messages[{number}]"), &mut output)?;
    }
    body.insert("messages".to_owned(), output.into());
    if continues {
        body.insert("continue_final_message".to_owned(), true.into());
    }
    if !stops.is_empty() {
        body.insert("stop".to_owned(), json!(stops));
    }
    if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
        let tools: Vec<Value> =
            tools.into_iter().enumerate().map(translate_tool).collect::<Result<_, _>>()?;
        body.insert("tools".to_owned(), tools.into());
    }
    if let Some(choice) = tool_choice {
        let (choice, sequential) = match choice {
            Choice::Auto { disable_parallel_tool_use } => {
                (json!("auto"), disable_parallel_tool_use)
            }
            Choice::Any { disable_parallel_tool_use } => {
                (json!("required"), disable_parallel_tool_use)
            }
            Choice::Tool { name } => {
                (json!({ "type": "function", "function": { "name": name } }), None)
            }
            Choice::None {} => (json!("none"), None),
        };
        body.insert("tool_choice".to_owned(), choice);
        if let Some(sequential) = sequential {
            body.insert("parallel_tool_calls".to_owned(), (!sequential).into());
        }
    }
    if let Some(Thinking { kind }) = thinking {
        let variables = json!({ "enable_thinking": kind != "disabled" });
        body.insert("chat_template_kwargs".to_owned(), variables);
    }
    if let Some(OutputConfig { effort, format }) = output_config {
        if let Some(effort) = effort {
            body.insert("reasoning_effort".to_owned(), effort.into());
        }
        if let Some(schema) = format.as_ref().and_then(|format| format.get("schema")) {
            let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
            body.insert("response_format".to_owned(), format);
        }
    }
    Ok(Value::Object(body))
}

/// Translates a message. It may become several: results of tools are separate messages.
fn translate_message(
    role: &str,
    content: Blocks,
    param: &str,
    output: &mut Vec<Value>,
) -> Result<(), Problem> {
    if !matches!(role, "user" | "assistant" | "system") {
        let problem = format!("expected a role of user, assistant or system, got {role:?}");
        let param = format!("{param}.role");
        return Err(Problem::invalid(problem)
            .with_param(&param)
            .with_code("unsupported_parameter"));
    }
    let blocks = match content {
        Blocks::Text(text) => vec![Block::Text { text }],
        Blocks::List(blocks) => blocks,
    };
    let (mut body_text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text } => body_text.push_str(&text),
            Block::Thinking { thinking } => thoughts.push_str(&thinking),
            Block::RedactedThinking {} => {}
            Block::ToolUse { id, name, input } => {
                let function = json!({ "name": name, "arguments": input.to_string() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            Block::ToolResult { tool_use_id, content } => {
                let content = content.map(|content| join_text(content, param)).transpose()?;
                output.push(json!({ "role": "tool", "tool_call_id": tool_use_id,
                    "content": content.unwrap_or_default() }));
            }
        }
    }
    // A message with tool results only has no text of its own.
    if body_text.is_empty()
        && calls.is_empty()
        && output.last().is_some_and(|last| last["role"] == "tool")
    {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": body_text });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    output.push(message);
    Ok(())
}

fn join_text(content: Blocks, param: &str) -> Result<String, Problem> {
    let blocks = match content {
        Blocks::Text(text) => return Ok(text),
        Blocks::List(blocks) => blocks,
    };
    let text = |block| match block {
        Block::Text { text } => Ok(text),
        _ => {
            let problem = "expected a string or blocks of type text";
            Err(Problem::invalid(problem).with_param(param).with_code("unsupported_parameter"))
        }
    };
    blocks.into_iter().map(text).collect()
}

fn translate_tool((number, tool): (usize, Tool)) -> Result<Value, Problem> {
    let Tool { kind, name, description, input_schema, strict } = tool;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        let problem =
            format!("tools of type {kind:?} are not supported: they run on Anthropic's servers");
        let param = format!("tools[{number}].type");
        return Err(Problem::invalid(problem)
            .with_param(&param)
            .with_code("unsupported_parameter"));
    }
    let mut function = json!({ "name": name });
    let parts = [
        ("description", description.map(Value::from)),
        ("parameters", input_schema),
        ("strict", strict.map(Value::from)),
    ];
    for (member, value) in parts {
        if let Some(value) = value {
            function[member] = value;
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}
