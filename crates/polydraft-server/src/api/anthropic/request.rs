//! `/v1/messages`: Anthropic's interface, as far as a text model has it. A request is translated
//! into one of `/v1/chat/completions`; what that route does not know is ignored or refused there.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::reply::Message;
use crate::App;
use crate::api::Prepared;
use crate::api::openai::chat;
use crate::api::shared::error::Problem;
use crate::api::shared::read::read;

/// What is translated; all else is passed on as it is.
#[derive(Deserialize)]
struct Request {
    messages: Vec<Turn>,
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
struct Turn {
    role: String,
    content: Blocks,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of blocks")]
enum Blocks {
    Text(String),
    Many(Vec<Block>),
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

/// Prepares a request as one of conversations.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: Value) -> Result<Prepared<Message>, Problem> {
    let mut request: Request = read(body)?;
    let stops = request.stop_sequences.take().unwrap_or_default();
    let model = request.rest.get("model").and_then(Value::as_str).unwrap_or(app.name()).to_owned();
    let body = translated(request, &stops)?;
    let prepared = chat::prepare(app, body)?;
    Ok(prepared.map_answer(|answer| Message::new(answer, model, stops, app.keeps_prompts)))
}

/// How many tokens a request's prompt has.
///
/// # Errors
/// As for [`prepare`].
pub fn count(app: &App, body: Value) -> Result<Value, Problem> {
    let prepared = prepare(app, body)?;
    let tokens: usize = prepared.requests.iter().map(|params| params.prompt.len()).sum();
    Ok(json!({ "input_tokens": tokens }))
}

fn translated(request: Request, stops: &[String]) -> Result<Value, Problem> {
    let Request { messages, system, tools, tool_choice, thinking, output_config, rest, .. } =
        request;
    let mut body = rest;
    let mut said = Vec::new();
    if let Some(system) = system {
        said.push(json!({ "role": "system", "content": text(system, "system")? }));
    }
    let goes_on = messages.last().is_some_and(|last| last.role == "assistant");
    for (number, Turn { role, content }) in messages.into_iter().enumerate() {
        turn(&role, content, &format!("messages[{number}]"), &mut said)?;
    }
    body.insert("messages".to_owned(), said.into());
    if goes_on {
        body.insert("continue_final_message".to_owned(), true.into());
    }
    if !stops.is_empty() {
        body.insert("stop".to_owned(), json!(stops));
    }
    if let Some(tools) = tools.filter(|tools| !tools.is_empty()) {
        let tools: Vec<Value> =
            tools.into_iter().enumerate().map(of_tool).collect::<Result<_, _>>()?;
        body.insert("tools".to_owned(), tools.into());
    }
    if let Some(choice) = tool_choice {
        let (choice, alone) = match choice {
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
        if let Some(alone) = alone {
            body.insert("parallel_tool_calls".to_owned(), (!alone).into());
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

/// One message, which may become several: a tool's answers are messages of their own.
fn turn(role: &str, content: Blocks, param: &str, said: &mut Vec<Value>) -> Result<(), Problem> {
    if !matches!(role, "user" | "assistant" | "system") {
        let problem = format!("expected a role of user, assistant or system, got {role:?}");
        let param = format!("{param}.role");
        return Err(Problem::invalid(problem).of(&param).code("unsupported_parameter"));
    }
    let blocks = match content {
        Blocks::Text(text) => vec![Block::Text { text }],
        Blocks::Many(blocks) => blocks,
    };
    let (mut words, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text } => words.push_str(&text),
            Block::Thinking { thinking } => thoughts.push_str(&thinking),
            Block::RedactedThinking {} => {}
            Block::ToolUse { id, name, input } => {
                let function = json!({ "name": name, "arguments": input.to_string() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            Block::ToolResult { tool_use_id, content } => {
                let content = content.map(|content| text(content, param)).transpose()?;
                said.push(json!({ "role": "tool", "tool_call_id": tool_use_id,
                    "content": content.unwrap_or_default() }));
            }
        }
    }
    // A message of nothing but tools' answers says nothing itself.
    if words.is_empty()
        && calls.is_empty()
        && said.last().is_some_and(|last| last["role"] == "tool")
    {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": words });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    said.push(message);
    Ok(())
}

fn text(content: Blocks, param: &str) -> Result<String, Problem> {
    let blocks = match content {
        Blocks::Text(text) => return Ok(text),
        Blocks::Many(blocks) => blocks,
    };
    let text = |block| match block {
        Block::Text { text } => Ok(text),
        _ => {
            let problem = "expected a string or blocks of type text";
            Err(Problem::invalid(problem).of(param).code("unsupported_parameter"))
        }
    };
    blocks.into_iter().map(text).collect()
}

fn of_tool((number, tool): (usize, Tool)) -> Result<Value, Problem> {
    let Tool { kind, name, description, input_schema, strict } = tool;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        let problem = format!("tools of type {kind:?} run at Anthropic: this server has none");
        let param = format!("tools[{number}].type");
        return Err(Problem::invalid(problem).of(&param).code("unsupported_parameter"));
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
