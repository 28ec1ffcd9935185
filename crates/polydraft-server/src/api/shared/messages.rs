//! Messages of conversations, converted from the client's form to the template's.

use std::collections::HashMap;

use polydraft_text::{Message, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::Problem;
use super::read::read;
use crate::LoadedModel;

/// A message. Other fields, such as those of an answer that a client sends back, are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// Role: system (or developer), user, assistant or tool, or another role that the model's chat
    /// template supports.
    role: String,
    /// Content: a string, or a list of parts of type text. Optional in an answer with calls.
    #[schema(value_type = Option<String>)]
    content: Option<Content>,
    /// Tool calls of an answer: `{"id": .., "type": "function", "function": {"name": ..,
    /// "arguments": ".."}}`.
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Vec<Value>>,
    /// Id of the call that a tool's message answers.
    tool_call_id: Option<String>,
    /// Name of the participant, for chat templates that use it.
    name: Option<String>,
    /// Reasoning before an answer, for chat templates that use it.
    #[serde(alias = "reasoning", alias = "thinking")]
    reasoning_content: Option<String>,
}

impl ChatMessage {
    /// Whether the message is an answer without tool calls.
    pub fn is_answer(&self) -> bool {
        self.role == "assistant" && self.tool_calls.as_ref().is_none_or(Vec::is_empty)
    }
}

/// Variables for a chat template: the reasoning effort, overridden by those of the request.
pub fn variables(given: Option<Map<String, Value>>, effort: Option<String>) -> Map<String, Value> {
    let mut variables = Map::new();
    if let Some(effort) = effort {
        if effort == "none" {
            variables.insert("enable_thinking".to_owned(), Value::Bool(false));
        }
        variables.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    variables.extend(given.into_iter().flatten());
    variables
}

/// Content: a string, or a list of parts.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of parts")]
pub enum Content {
    /// A string.
    Text(String),
    /// Parts, to be joined.
    Parts(Vec<ContentPart>),
}

/// Part of a content.
#[derive(Debug, Deserialize)]
pub struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl Content {
    /// Joins the text, if all parts have one of these types; `param` is the parameter to report.
    pub fn text(self, kinds: &[&str], param: &str) -> Result<String, Problem> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = |part: ContentPart| match (kinds.contains(&part.kind.as_str()), part.text) {
            (true, Some(text)) => Ok(text),
            _ => {
                let (kinds, kind) = (kinds.join(" or "), part.kind);
                let problem = format!(
                    "expected parts of type {kinds} with a string, got one of type {kind:?}"
                );
                Err(Problem::invalid(problem).with_param(param).with_code("unsupported_parameter"))
            }
        };
        parts.into_iter().map(text).collect()
    }
}

/// Creates a message of one of OpenAI's roles; `param` is the parameter to report.
///
/// # Errors
/// Another role.
pub fn message_with_role(role: &str, content: String, param: &str) -> Result<Message, Problem> {
    match role {
        // OpenAI's newer name for system.
        "system" | "developer" => Ok(Message::system(content)),
        "user" => Ok(Message::user(content)),
        "assistant" => Ok(Message::assistant(content)),
        role => {
            let problem = format!(
                "expected a role of system, developer, user, assistant or tool, got {role:?}"
            );
            Err(Problem::invalid(problem).with_param(param).with_code("unsupported_parameter"))
        }
    }
}

#[derive(Deserialize)]
struct Call {
    id: String,
    function: FunctionCall,
}

#[derive(Deserialize)]
struct FunctionCall {
    name: String,
    arguments: String,
}

/// Names of the tools called so far, by call id: results refer to them.
#[derive(Default)]
pub struct CallNames(HashMap<String, String>);

impl CallNames {
    /// Records and formats a call. Arguments that are not a JSON object are passed on as a string:
    /// a model may have written them.
    pub fn call(&mut self, id: String, name: String, arguments: String) -> Value {
        let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
        let object = serde_json::from_str(text).ok().filter(Value::is_object);
        let arguments = object.unwrap_or(Value::String(arguments));
        let call = json!({ "id": id, "type": "function", "function": { "name": name,
            "arguments": arguments } });
        self.0.insert(id, name);
        call
    }

    /// Creates the message of a tool's result.
    pub fn answer(&self, content: String, id: String) -> Message {
        let name = self.0.get(&id).cloned();
        Message::tool(content, id, name)
    }
}

/// Maximum custom roles that are checked in a prompt.
const MAX_CUSTOM_ROLES: usize = 16;

/// Paths of messages with a custom role that the template omits, the first one of each role. The
/// template reports no error for them, so they are reported to clients as ignored parameters.
///
/// # Errors
/// Errors of the template.
pub fn omitted_messages(
    model: &LoadedModel,
    messages: &[Message],
    rendering: &Rendering,
) -> Result<Vec<String>, Problem> {
    let Some(chat) = &model.language.chat else { return Ok(Vec::new()) };
    let mut first_of_role: Vec<usize> = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let is_known = matches!(&*message.role, "system" | "user" | "assistant" | "tool");
        if !is_known && first_of_role.iter().all(|first| messages[*first].role != message.role) {
            first_of_role.push(number);
        }
    }
    first_of_role.truncate(MAX_CUSTOM_ROLES);
    if first_of_role.is_empty() {
        return Ok(Vec::new());
    }
    // Append marks: a template may write the content in another form.
    let mark = format!("{:032x}", polydraft_runtime::random::<u128>());
    let mark = |number: usize| format!("{mark}n{number}n");
    let mut marked = messages.to_vec();
    first_of_role.iter().for_each(|first| marked[*first].content.push_str(&mark(*first)));
    let text = chat.render_with(&marked, rendering)?;
    first_of_role.retain(|first| !text.contains(&mark(*first)));
    Ok(first_of_role.iter().map(|first| format!("messages[{first}]")).collect())
}

/// Converts the messages of a conversation for the template.
///
/// # Errors
/// An invalid message.
pub fn to_messages(
    model: &LoadedModel,
    messages: Vec<ChatMessage>,
) -> Result<Vec<Message>, Problem> {
    let mut call_names = CallNames::default();
    let convert = |(number, message_param): (usize, ChatMessage)| {
        let param = |field: &str| format!("messages[{number}]{field}");
        let ChatMessage { role, content, tool_calls, tool_call_id, name, reasoning_content } =
            message_param;
        let calls = tool_calls.unwrap_or_default();
        let invalid =
            |field: &str, problem: &str| Err(Problem::invalid(problem).with_param(&param(field)));
        if !calls.is_empty() && role != "assistant" {
            return invalid(".tool_calls", "only messages of the assistant have tool calls");
        }
        if tool_call_id.is_some() != (role == "tool") {
            return invalid(
                ".tool_call_id",
                "messages of the role tool need a tool_call_id, others must not have one",
            );
        }
        let content = match content {
            Some(content) => content.text(&["text"], &param(".content"))?,
            None if calls.is_empty() => {
                return invalid(".content", "expected a string or a list of parts");
            }
            None => String::new(),
        };
        if let Some(id) = tool_call_id {
            let answer = call_names.answer(content, id);
            return Ok(Message { name: answer.name.or(name), ..answer });
        }
        let is_custom_role = !matches!(&*role, "" | "system" | "developer" | "user" | "assistant");
        let mut message = match is_custom_role && !model.options.strict {
            true => Message::new(role, content),
            false => message_with_role(&role, content, &param(".role"))?,
        };
        (message.name, message.reasoning_content) = (name, reasoning_content);
        for (call, value) in calls.into_iter().enumerate() {
            let param = param(&format!(".tool_calls[{call}]"));
            let Call { id, function: FunctionCall { name, arguments } } =
                read(value).map_err(|problem| problem.with_param(&param))?;
            message.tool_calls.push(call_names.call(id, name, arguments));
        }
        Ok(message)
    };
    messages.into_iter().enumerate().map(convert).collect()
}
