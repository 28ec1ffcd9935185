//! Messages of conversations, as clients send them and as templates read them.

use std::collections::HashMap;

use polydraft_text::{Message, Rendering};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::Problem;
use super::read::read;
use super::tools;
use crate::App;

/// A message. What clients send back of an answer besides, or what else they know of it, says
/// nothing here.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Spoken {
    /// Who speaks: system (or developer), user, assistant or tool, or another role that the
    /// model's chat template knows.
    role: String,
    /// The content: a string, or a list of parts of type text; an answer with calls may have none.
    #[schema(value_type = Option<String>)]
    content: Option<Content>,
    /// The calls of an answer: `{"id": .., "type": "function", "function": {"name": ..,
    /// "arguments": ".."}}`.
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Vec<Value>>,
    /// Which call a tool answers.
    tool_call_id: Option<String>,
    /// Who of that role speaks: passed to the model where its template has a place for it.
    name: Option<String>,
    /// What the model thought before an answer, for templates that have a place for it.
    #[serde(alias = "reasoning", alias = "thinking")]
    reasoning_content: Option<String>,
}

impl Spoken {
    /// Whether it is an answer of the model's, in words.
    pub fn is_answer(&self) -> bool {
        self.role == "assistant" && self.tool_calls.as_ref().is_none_or(Vec::is_empty)
    }
}

/// Variables for a chat template: those of the request, which win, and its reasoning effort.
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

/// The content: a string, or parts that are strings.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a string or a list of parts")]
pub enum Content {
    /// As it is.
    Text(String),
    /// Joined.
    Parts(Vec<Part>),
}

/// A part.
#[derive(Debug, Deserialize)]
pub struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl Content {
    /// Its text, where its parts are all of one of these kinds; `param` names it.
    pub fn text(self, kinds: &[&str], param: &str) -> Result<String, Problem> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = |part: Part| match (kinds.contains(&part.kind.as_str()), part.text) {
            (true, Some(text)) => Ok(text),
            _ => {
                let (kinds, kind) = (kinds.join(" or "), part.kind);
                let problem = format!(
                    "expected parts of type {kinds} with a string, got one of type {kind:?}"
                );
                Err(Problem::invalid(problem).of(param).code("unsupported_parameter"))
            }
        };
        parts.into_iter().map(text).collect()
    }
}

/// The message of one of OpenAI's roles; `param` names the role.
///
/// # Errors
/// Another role.
pub fn message(role: &str, content: String, param: &str) -> Result<Message, Problem> {
    match role {
        // The newer name of the same.
        "system" | "developer" => Ok(Message::system(content)),
        "user" => Ok(Message::user(content)),
        "assistant" => Ok(Message::assistant(content)),
        role => {
            let problem = format!(
                "expected a role of system, developer, user, assistant or tool, got {role:?}"
            );
            Err(Problem::invalid(problem).of(param).code("unsupported_parameter"))
        }
    }
}

#[derive(Deserialize)]
struct Call {
    id: String,
    function: Called,
}

#[derive(Deserialize)]
struct Called {
    name: String,
    arguments: String,
}

/// Calls so far, by id: who answers one is known by it.
#[derive(Default)]
pub struct Calling(HashMap<String, String>);

impl Calling {
    /// An answer's call. Arguments that are no JSON object, which a model may have written, are
    /// shown to it as the string that they are.
    pub fn call(&mut self, id: String, name: String, arguments: String) -> Value {
        let text = if arguments.trim().is_empty() { "{}" } else { &arguments };
        let object = serde_json::from_str(text).ok().filter(Value::is_object);
        let arguments = object.unwrap_or(Value::String(arguments));
        let call = json!({ "id": id, "type": "function", "function": { "name": name,
            "arguments": arguments } });
        self.0.insert(id, name);
        call
    }

    /// What a tool answered to a call.
    pub fn answer(&self, content: String, id: String) -> Message {
        let name = self.0.get(&id).cloned();
        Message::tool(content, id, name)
    }
}

/// Roles at most that are none of OpenAI's and that are looked for in a prompt.
const OWN_ROLES: usize = 16;

/// The first message of each role that is none of OpenAI's and that the model's template leaves
/// out, by name: a template says nothing of it, and the client is to learn that the model does not
/// read them.
///
/// # Errors
/// What the template refuses.
pub fn left_out(app: &App, messages: &[Message], how: &Rendering) -> Result<Vec<String>, Problem> {
    let Some(chat) = &app.language.chat else { return Ok(Vec::new()) };
    let mut firsts: Vec<usize> = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        let is_known = matches!(&*message.role, "system" | "user" | "assistant" | "tool");
        if !is_known && firsts.iter().all(|first| messages[*first].role != message.role) {
            firsts.push(number);
        }
    }
    firsts.truncate(OWN_ROLES);
    if firsts.is_empty() {
        return Ok(Vec::new());
    }
    // What each says is marked: a template may write the content otherwise than it was sent.
    let mark = format!("{:032x}", polydraft_runtime::random::<u128>());
    let mark = |number: usize| format!("{mark}n{number}n");
    let mut marked = messages.to_vec();
    firsts.iter().for_each(|first| marked[*first].content.push_str(&mark(*first)));
    let text = chat.render_with(&marked, how)?;
    firsts.retain(|first| !text.contains(&mark(*first)));
    Ok(firsts.iter().map(|first| format!("messages[{first}]")).collect())
}

/// The messages of a conversation, as its template reads them.
///
/// # Errors
/// What is wrong with one; tools in them that the model's template does not know.
pub fn conversation(app: &App, messages: Vec<Spoken>) -> Result<Vec<Message>, Problem> {
    let mut called = Calling::default();
    let of = |(number, spoken): (usize, Spoken)| {
        let param = |field: &str| format!("messages[{number}]{field}");
        let Spoken { role, content, tool_calls, tool_call_id, name, reasoning_content } = spoken;
        let calls = tool_calls.unwrap_or_default();
        if role == "tool" || !calls.is_empty() {
            let field = if role == "tool" { ".role" } else { ".tool_calls" };
            tools::form(app).map_err(|problem| problem.of(&param(field)))?;
        }
        let wrong = |field: &str, problem: &str| Err(Problem::invalid(problem).of(&param(field)));
        if !calls.is_empty() && role != "assistant" {
            return wrong(".tool_calls", "only an assistant makes calls");
        }
        if tool_call_id.is_some() != (role == "tool") {
            return wrong(".tool_call_id", "messages of tools, and no others, answer one call");
        }
        let content = match content {
            Some(content) => content.text(&["text"], &param(".content"))?,
            None if calls.is_empty() => {
                return wrong(".content", "expected a string or a list of parts");
            }
            None => String::new(),
        };
        if let Some(id) = tool_call_id {
            let answer = called.answer(content, id);
            return Ok(Message { name: answer.name.or(name), ..answer });
        }
        let is_own = !matches!(&*role, "" | "system" | "developer" | "user" | "assistant");
        let mut message = match is_own && !app.options.strict {
            true => Message::of(role, content),
            false => message(&role, content, &param(".role"))?,
        };
        (message.name, message.reasoning_content) = (name, reasoning_content);
        for (call, value) in calls.into_iter().enumerate() {
            let param = param(&format!(".tool_calls[{call}]"));
            let Call { id, function: Called { name, arguments } } =
                read(value).map_err(|problem| problem.of(&param))?;
            message.tool_calls.push(called.call(id, name, arguments));
        }
        Ok(message)
    };
    messages.into_iter().enumerate().map(of).collect()
}
