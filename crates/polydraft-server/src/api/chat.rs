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

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl Spoken {
    fn message(self, number: usize) -> Result<Message, Problem> {
        let param = |field: &str| format!("messages[{number}].{field}");
        let content = match self.content {
            Content::Text(text) => text,
            Content::Parts(parts) => {
                let text = |part: Part| match (part.kind.as_str(), part.text) {
                    ("text", Some(text)) => Ok(text),
                    (kind, _) => {
                        let problem =
                            format!("expected parts of type \"text\" with a text, got one of type {kind:?}");
                        Err(Problem::invalid(problem).of(&param("content")).code("unsupported_parameter"))
                    }
                };
                parts.into_iter().map(text).collect::<Result<_, _>>()?
            }
        };
        match self.role.as_str() {
            // The newer name of the same.
            "system" | "developer" => Ok(Message::system(content)),
            "user" => Ok(Message::user(content)),
            "assistant" => Ok(Message::assistant(content)),
            role => {
                let problem =
                    format!("expected a role of system, developer, user or assistant, got {role:?}");
                Err(Problem::invalid(problem).of(&param("role")).code("unsupported_parameter"))
            }
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
    let messages = messages.into_iter().enumerate();
    let messages: Vec<Message> =
        messages.map(|(number, spoken)| spoken.message(number)).collect::<Result<_, _>>()?;
    asked.prompt = app.language.encode_chat_within(&messages, app.context)?;
    app.check(&asked)?;
    let usage = common.stream_options.unwrap_or_default().include_usage;
    let asked = vec![asked];
    let answer = Answer::new(app, Shape::Chat, &asked, usage, Vec::new());
    Ok(Prepared { asked, answer, stream: common.stream })
}
