//! Requests of `/v1/messages`, translated into requests of `/v1/chat/completions`. Fields without a
//! translation are passed on, and ignored or rejected there.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::Message;
use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::openai::chat;
use crate::api::shared::error::Problem;
use crate::api::shared::fields::{check_tool_fields, check_unread_fields};
use crate::api::shared::messages::{is_media, media_problem};
use crate::api::shared::read::read;

/// Fields that are translated; `rest` is passed on unchanged.
#[derive(Deserialize)]
struct Request {
    messages: Vec<InputMessage>,
    system: Option<Blocks>,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
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
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of blocks")]
enum Blocks {
    Text(String),
    List(Vec<Value>),
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
    Document { source: Source, title: Option<String>, context: Option<String> },
}

/// Source of a document.
#[derive(Deserialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    expecting = r#"{"type": "text", "data": ..} or {"type": "content", "content": ..}"#
)]
enum Source {
    Text { data: String },
    Content { content: Blocks },
}

/// Types of blocks that are read, and their fields.
const BLOCKS: [(&str, &[&str]); 6] = [
    ("text", &["text", "citations"]),
    ("thinking", &["thinking", "signature"]),
    ("redacted_thinking", &["data"]),
    ("tool_use", &["id", "name", "input", "caller"]),
    ("tool_result", &["tool_use_id", "content", "is_error"]),
    ("document", &["source", "title", "context"]),
];

/// Parts that a translation leaves out.
struct LeftOut {
    /// Whether it is an error.
    strict: bool,
    names: Vec<String>,
}

impl LeftOut {
    /// Reads a block; `None` if it is of a type that only a provider's own tools write.
    ///
    /// # Errors
    /// An invalid block; an image; with `strict` also what is left out.
    fn read_block(&mut self, block: Value, param: &str) -> Result<Option<Block>, Problem> {
        let kind = block.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        if kind == "document" {
            check_document(&block, param)?;
        } else if is_media(&kind) {
            return Err(media_problem(&kind, param));
        }
        let known = BLOCKS.iter().find(|(known, _)| *known == kind);
        match known {
            Some((_, fields)) => {
                let rest = block.as_object().into_iter().flatten();
                let rest = rest.filter(|(name, value)| {
                    let is_off = value.get("enabled") == Some(&Value::Bool(false));
                    *name != "type" && !is_off && !fields.contains(&name.as_str())
                });
                let rest = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
                check_unread_fields(&rest, param, self.strict, &mut self.names)?;
            }
            None if kind.is_empty() || self.strict => {}
            None => {
                self.names.push(format!("{param} ({kind})"));
                return Ok(None);
            }
        }
        let block = read(block).map_err(|problem| problem.in_object(param))?;
        let Block::Document { source, title, context } = block else { return Ok(Some(block)) };
        let text = match source {
            Source::Text { data } => data,
            Source::Content { content } => join_text(content, &format!("{param}.source"), self)?,
        };
        Ok(Some(Block::Text { text: document_text(&text, title, context) }))
    }
}

/// Checks that a document is text.
///
/// # Errors
/// A PDF, a URL or a file.
fn check_document(block: &Value, param: &str) -> Result<(), Problem> {
    let kind = block.pointer("/source/type").and_then(Value::as_str).unwrap_or_default();
    if matches!(kind, "text" | "content") {
        return Ok(());
    }
    let media = block.pointer("/source/media_type").and_then(Value::as_str);
    let media = media.map(|media| format!(" ({media})")).unwrap_or_default();
    let problem = format!(
        "expected a document with a source of type text or content, got {kind:?}{media}: PDFs, \
         URLs and files are not read here; send their text as {{\"type\": \"text\", \
         \"media_type\": \"text/plain\", \"data\": ..}}"
    );
    let param = format!("{param}.source");
    Err(Problem::invalid(problem).with_param(&param).with_code("unsupported_parameter"))
}

/// A document as the model reads it: in tags, on lines of its own.
fn document_text(text: &str, title: Option<String>, context: Option<String>) -> String {
    let mut lines = vec!["<document>".to_owned()];
    let tag = |name: &str, text: String| format!("<{name}>{text}</{name}>");
    lines.extend(title.map(|title| tag("title", title)));
    lines.extend(context.map(|context| tag("context", context)));
    lines.extend([text.to_owned(), "</document>\n".to_owned()]);
    lines.join("\n")
}

#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    input_schema: Option<Value>,
    strict: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    expecting = r#"{"type": "any"}, {"type": "auto"}, {"type": "none"} or {"type": "tool", ..}"#
)]
enum Choice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String },
    None {},
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
    let mut left_out = LeftOut { strict: model.options.strict, names: Vec::new() };
    let body = translate(request, &stops, &mut left_out)?;
    let mut prepared = chat::prepare(model, body)?;
    prepared.ignored.extend(left_out.names);
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

fn translate(request: Request, stops: &[String], left_out: &mut LeftOut) -> Result<Value, Problem> {
    let Request { messages, system, tools, tool_choice, output_config, rest, .. } = request;
    let mut body = rest;
    let mut output = Vec::new();
    if let Some(system) = system {
        output.push(json!({ "role": "system", "content": join_text(system, "system", left_out)? }));
    }
    let is_prefix = messages.last().is_some_and(|last| last.role == "assistant");
    for (number, InputMessage { role, content, rest }) in messages.into_iter().enumerate() {
        let param = format!("messages[{number}]");
        check_unread_fields(&rest, &param, left_out.strict, &mut left_out.names)?;
        translate_message(&role, content, &param, left_out, &mut output)?;
    }
    // An answer that begins with nothing is any answer.
    let last = output.last().filter(|last| is_prefix && last["content"] == "");
    if last.is_some_and(|last| last.as_object().is_some_and(|last| last.len() == 2)) {
        output.pop();
    } else if is_prefix {
        body.insert("continue_final_message".to_owned(), true.into());
    }
    body.insert("messages".to_owned(), output.into());
    if !stops.is_empty() {
        body.insert("stop".to_owned(), json!(stops));
    }
    if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
        let mut translated = Vec::new();
        for (number, tool) in tools.into_iter().enumerate() {
            let param = format!("tools[{number}]");
            translated.push(translate_tool(tool, &param, left_out)?);
        }
        body.insert("tools".to_owned(), translated.into());
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
    left_out: &mut LeftOut,
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
        Blocks::List(blocks) => {
            let mut read = Vec::new();
            for (number, block) in blocks.into_iter().enumerate() {
                read.extend(left_out.read_block(block, &format!("{param}.content[{number}]"))?);
            }
            read
        }
    };
    let (mut body_text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text } => body_text.push_str(&text),
            // Read as text.
            Block::Document { .. } => {}
            Block::Thinking { thinking } => thoughts.push_str(&thinking),
            Block::RedactedThinking {} => {}
            Block::ToolUse { id, name, input } => {
                let function = json!({ "name": name, "arguments": input.to_string() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            Block::ToolResult { tool_use_id, content } => {
                let content =
                    content.map(|content| join_text(content, param, left_out)).transpose()?;
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

fn join_text(content: Blocks, param: &str, left_out: &mut LeftOut) -> Result<String, Problem> {
    let blocks = match content {
        Blocks::Text(text) => return Ok(text),
        Blocks::List(blocks) => blocks,
    };
    let text = |block| match left_out.read_block(block, param)? {
        Some(Block::Text { text }) => Ok(text),
        None => Ok(String::new()),
        Some(_) => {
            let problem = "expected a string or blocks of type text";
            Err(Problem::invalid(problem).with_param(param).with_code("unsupported_parameter"))
        }
    };
    blocks.into_iter().map(text).collect()
}

fn translate_tool(tool: Tool, param: &str, left_out: &mut LeftOut) -> Result<Value, Problem> {
    let Tool { kind, name, description, input_schema, strict, rest } = tool;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        // It runs on Anthropic's servers; conversations leave it out by name.
        return Ok(json!({ "type": kind, "name": name }));
    }
    check_tool_fields(&rest, param, left_out.strict, &mut left_out.names)?;
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
