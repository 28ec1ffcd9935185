//! Messages of conversations, converted from the client's form to the template's.

use std::collections::HashMap;

use polydraft_text::{Message, read_json};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::Problem;
use super::fields::check_unread_fields;
use super::read::read;
use crate::LoadedModel;

/// A message. Other fields are named as ignored.
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
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl ChatMessage {
    /// Whether the message is an answer without tool calls.
    pub fn is_answer(&self) -> bool {
        self.role == "assistant" && self.tool_calls.as_ref().is_none_or(Vec::is_empty)
    }
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
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Content {
    /// Names fields of parts of these types that are not read; `param` is the content.
    ///
    /// # Errors
    /// With `strict`, the first of them.
    pub fn check_parts(
        &self,
        kinds: &[&str],
        param: &str,
        strict: bool,
        ignored: &mut Vec<String>,
    ) -> Result<(), Problem> {
        let Self::Parts(parts) = self else { return Ok(()) };
        for (part, ContentPart { rest, kind, .. }) in parts.iter().enumerate() {
            if kinds.contains(&kind.as_str()) {
                check_unread_fields(rest, &format!("{param}[{part}]"), strict, ignored)?;
            }
        }
        Ok(())
    }

    /// Joins the text, if all parts have one of these types; `param` is the parameter to report.
    pub fn text(self, kinds: &[&str], param: &str) -> Result<String, Problem> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = |part: ContentPart| match (kinds.contains(&part.kind.as_str()), part.text) {
            (true, Some(text)) => Ok(text),
            (true, None) => {
                let problem = format!("a part of type {:?} needs a string as its text", part.kind);
                Err(Problem::invalid(problem).with_param(param))
            }
            _ if is_media(&part.kind) => Err(media_problem(&part.kind, param)),
            _ => {
                let (kinds, kind) = (kinds.join(" or "), part.kind);
                let problem = format!("expected parts of type {kinds}, got one of type {kind:?}");
                Err(Problem::invalid(problem).with_param(param).with_code("unsupported_parameter"))
            }
        };
        parts.into_iter().map(text).collect()
    }
}

/// Whether a part is an image, a sound or a file.
pub fn is_media(kind: &str) -> bool {
    ["image", "audio", "video", "file", "document"].iter().any(|media| kind.contains(media))
}

/// Problem of a part that is an image, a sound or a file.
pub fn media_problem(kind: &str, param: &str) -> Problem {
    let problem = format!(
        "got a part of type {kind:?}, but of this model only the part that reads text is computed: \
         send text only, or this conversation to a server that reads images and sound, such as \
         llama-server with --mmproj"
    );
    Problem::invalid(problem).with_param(param).with_code("unsupported_parameter")
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
    #[serde(rename = "type")]
    _kind: Option<String>,
    function: FunctionCall,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct FunctionCall {
    name: String,
    arguments: Arguments,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Arguments of a call: JSON in a string, or the object itself.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or an object")]
enum Arguments {
    Text(String),
    Object(Map<String, Value>),
}

/// Names of the tools called so far, by call id: results refer to them.
#[derive(Default)]
pub struct CallNames(HashMap<String, String>);

impl CallNames {
    /// Records and formats a call. Arguments that are not a JSON object are passed on as a string:
    /// a model may have written them.
    pub fn call(&mut self, id: String, name: String, arguments: String) -> Value {
        let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
        let object = read_json(text).ok().filter(Value::is_object);
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

/// Converts the messages of a conversation for the template.
///
/// # Errors
/// An invalid message.
pub fn to_messages(
    model: &LoadedModel,
    messages: Vec<ChatMessage>,
    ignored: &mut Vec<String>,
) -> Result<Vec<Message>, Problem> {
    let mut call_names = CallNames::default();
    let mut convert = |(number, message_param): (usize, ChatMessage)| {
        let param = |field: &str| format!("messages[{number}]{field}");
        let ChatMessage { role, content, tool_calls, tool_call_id, name, reasoning_content, rest } =
            message_param;
        let strict = model.options.strict;
        check_unread_fields(&rest, &param(""), strict, ignored)?;
        if let Some(content) = &content {
            content.check_parts(&["text"], &param(".content"), strict, ignored)?;
        }
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
            // An answer may have calls only, and a tool may return nothing.
            None if calls.is_empty() && role != "assistant" && role != "tool" => {
                let param = param(".content");
                let problem = format!(
                    "{param}: expected a string or a list of parts, got null; leave the message \
                     out or send \"\""
                );
                return Err(Problem::invalid(problem).with_param(&param));
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
            let Call { id, function, rest, .. } =
                read(value).map_err(|problem| problem.in_object(&param))?;
            check_unread_fields(&rest, &param, strict, ignored)?;
            let FunctionCall { name, arguments, rest } = function;
            check_unread_fields(&rest, &format!("{param}.function"), strict, ignored)?;
            let arguments = match arguments {
                Arguments::Text(text) => text,
                Arguments::Object(object) => Value::Object(object).to_string(),
            };
            message.tool_calls.push(call_names.call(id, name, arguments));
        }
        Ok(message)
    };
    messages.into_iter().enumerate().map(&mut convert).collect()
}
