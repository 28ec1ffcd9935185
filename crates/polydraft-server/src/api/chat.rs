//! `/v1/chat/completions`: answers to conversations.

use polydraft_text::Message;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{Answer, Shape};
use super::error::Problem;
use super::params::{Common, MOST_TOP, null_is_default, read, refuse, within};
use super::{Prepared, parse};
use crate::App;

/// Parameters of conversations alone.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Chat {
    /// The conversation so far.
    messages: Option<Vec<Spoken>>,
    /// Tokens of an answer at most. Default: as the server was started, else up to the context's end.
    max_completion_tokens: Option<usize>,
    /// The older name of max_completion_tokens.
    max_tokens: Option<usize>,
    /// Whether to tell every token's log-probability at temperature 1.
    #[serde(default, deserialize_with = "null_is_default")]
    logprobs: bool,
    /// With each, so many of the likeliest in its place.
    top_logprobs: Option<usize>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Spoken {
    /// Who speaks: system (or developer), user or assistant.
    role: String,
    /// What is said: a text, or a list of parts of type text.
    #[schema(value_type = String)]
    content: Content,
}

/// What is said: a text, or parts that are texts.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of parts")]
pub enum Content {
    /// As it is.
    Text(String),
    /// Behind each other.
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
                let problem = format!("expected parts of type {kinds} with a text, got one of type {kind:?}");
                Err(Problem::invalid(problem).of(param).code("unsupported_parameter"))
            }
        };
        parts.into_iter().map(text).collect()
    }
}

/// What somebody of this role said; `param` names the role.
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
            let problem = format!("expected a role of system, developer, user or assistant, got {role:?}");
            Err(Problem::invalid(problem).of(param).code("unsupported_parameter"))
        }
    }
}

/// From a body to what the engine is asked, as for completions.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: &[u8]) -> Result<Prepared, Problem> {
    let mut common: Common = read(parse(body)?)?;
    let own: Chat = read(Value::Object(std::mem::take(&mut common.rest)))?;
    refuse(&own.rest)?;
    if own.max_tokens.is_some() && own.max_completion_tokens.is_some_and(|most| Some(most) != own.max_tokens)
    {
        let problem = "max_tokens is the older name of max_completion_tokens: give one of them";
        return Err(Problem::invalid(problem).of("max_tokens"));
    }
    let max_tokens = own.max_completion_tokens.or(own.max_tokens);
    let mut asked = common.asked(app, &app.chat, max_tokens)?;
    if own.top_logprobs.is_some() && !own.logprobs {
        return Err(Problem::invalid("top_logprobs has no meaning without logprobs").of("top_logprobs"));
    }
    let top = own.logprobs.then(|| within("top_logprobs", own.top_logprobs.unwrap_or(0), 0, MOST_TOP));
    asked.scores = top.transpose()?;
    let Some(messages) = own.messages.filter(|messages| !messages.is_empty()) else {
        return Err(Problem::invalid("the parameter messages is missing or empty").of("messages"));
    };
    let messages = messages.into_iter().enumerate().map(|(number, Spoken { role, content })| {
        let param = |field: &str| format!("messages[{number}].{field}");
        message(&role, content.text(&["text"], &param("content"))?, &param("role"))
    });
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    asked.prompt = app.language.encode_chat_within(&messages, app.context)?;
    app.check(&asked)?;
    let usage = common.stream_options.unwrap_or_default().include_usage;
    let asked = vec![asked];
    let answer = Answer::new(app, Shape::Chat, &asked, usage, Vec::new());
    Ok(Prepared { asked, answer: Box::new(answer), stream: common.stream })
}
