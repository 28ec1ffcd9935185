//! `/v1/responses`: answers to conversations in the newer form. Nothing is stored, so nothing can be referred to.

use polydraft_engine::Finish;
use polydraft_text::Message;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::answer::{Answer, Shape};
use super::error::Problem;
use super::messages::{Content, message};
use super::params::{Common, read, refuse};
use super::{Prepared, Reply, Sent, parse};
use crate::App;
use crate::worker::Event;

/// Parameters of responses alone. Of the common ones `n`, `response_format`, `stream_options` and `steps` are of other routes.
#[derive(Debug, Deserialize, ToSchema)]
pub struct Responses {
    /// A text, or a list of messages.
    #[schema(value_type = String)]
    input: Option<Input>,
    /// What the model is told before the input.
    instructions: Option<String>,
    /// Tokens of the answer at most. Default: as the server was started, else up to the context's end.
    max_output_tokens: Option<usize>,
    /// `{"format": ..}`: `{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "name": .., "schema": ..}`.
    #[schema(value_type = Option<Object>)]
    text: Option<TextOptions>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of messages")]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// A message; those that were answers come back with an id and a status.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: String,
    content: Content,
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "status")]
    _status: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextOptions {
    format: Option<Value>,
}

/// From a body to what the engine is asked, as for completions.
///
/// # Errors
/// What is wrong with the request.
pub fn prepare(app: &App, body: &[u8]) -> Result<Prepared, Problem> {
    let mut common: Common = read(parse(body)?)?;
    let own: Responses = read(Value::Object(std::mem::take(&mut common.rest)))?;
    refuse(&own.rest)?;
    for (param, given) in [
        ("n", common.n.is_some_and(|n| n != 1)),
        ("response_format", common.response_format.is_some()),
        ("stream_options", common.stream_options.is_some()),
        ("steps", common.steps.is_some()),
    ] {
        if given {
            let problem =
                Problem::invalid(format_args!("the parameter {param:?} is not supported on this route"));
            return Err(problem.of(param).code("unsupported_parameter"));
        }
    }
    let format = own.text.and_then(|text| text.format);
    common.response_format = format.clone().map(as_in_chat);
    let asked = common.asked(app, &app.chat, own.max_output_tokens);
    let mut asked = asked.map_err(|problem| match problem.error.param.as_deref() {
        Some("response_format") => problem.of("text.format"),
        _ => problem,
    })?;
    let mut messages: Vec<Message> = own.instructions.iter().map(Message::system).collect();
    match own.input {
        None => return Err(Problem::invalid("the parameter input is missing").of("input")),
        Some(Input::Text(text)) => messages.push(Message::user(text)),
        Some(Input::Items(items)) => {
            for (number, item) in items.into_iter().enumerate() {
                let param = |field: &str| format!("input[{number}].{field}");
                if let Some(kind) = item.kind.filter(|kind| kind != "message") {
                    let problem = format!("expected items of type message, got one of type {kind:?}");
                    return Err(Problem::invalid(problem).of(&param("type")).code("unsupported_parameter"));
                }
                let text = item.content.text(&["input_text", "output_text"], &param("content"))?;
                messages.push(message(&item.role, text, &param("role"))?);
            }
        }
    }
    asked.prompt = app.language.encode_chat_within(&messages, app.context)?;
    app.check(&asked)?;
    let asked = vec![asked];
    let inner = Answer::new(app, Shape::Chat, &asked, false, Vec::new());
    let settings = json!({
        "instructions": own.instructions,
        "max_output_tokens": asked[0].limits.max_tokens,
        "temperature": asked[0].sampling.temperature,
        "top_p": asked[0].sampling.top_p,
        "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
        "user": common.user,
    });
    let answer =
        Response { inner, id: rand::random(), model: app.name.clone(), settings, sent: 0, sequence: 0 };
    Ok(Prepared { asked, answer: Box::new(answer), stream: common.stream })
}

/// The form of the texts as conversations write it.
fn as_in_chat(mut format: Value) -> Value {
    if format["type"] != "json_schema" {
        return format;
    }
    let kind = format.as_object_mut().and_then(|object| object.shift_remove("type"));
    json!({ "type": kind, "json_schema": format })
}

/// The answer as it grows.
struct Response {
    inner: Answer,
    id: u128,
    model: String,
    settings: Value,
    /// Bytes of the text that were sent.
    sent: usize,
    /// Events that were sent.
    sequence: usize,
}

impl Response {
    fn item_id(&self) -> String {
        format!("msg_{:032x}", self.id)
    }

    fn status(&self) -> &'static str {
        match self.inner.first().1 {
            None => "in_progress",
            Some(Finish::MaxTokens | Finish::Context) => "incomplete",
            Some(_) => "completed",
        }
    }

    fn part(&self) -> Value {
        json!({ "type": "output_text", "text": self.inner.first().0, "annotations": [], "logprobs": [] })
    }

    fn item(&self, content: Vec<Value>) -> Value {
        let (id, status) = (self.item_id(), self.status());
        json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": content })
    }

    fn object(&self, output: Vec<Value>) -> Value {
        let usage = self.inner.usage();
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.total_tokens,
            "speculation": usage.speculation,
        });
        let status = self.status();
        let reason = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut object = json!({
            "id": format!("resp_{:032x}", self.id),
            "object": "response",
            "created_at": self.inner.created(),
            "status": status,
            "error": null,
            "incomplete_details": reason,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": false,
            "previous_response_id": null,
            "store": false,
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "metadata": {},
            "usage": (status != "in_progress").then_some(usage),
        });
        for (name, value) in self.settings.as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        object
    }

    /// An event of this name, whose data says it too.
    fn event(&mut self, name: &'static str, mut data: Value) -> Sent {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Sent { name: Some(name), data: data.to_string() }
    }

    /// Where in the answer something is.
    fn at(&self) -> Value {
        json!({ "item_id": self.item_id(), "output_index": 0, "content_index": 0 })
    }
}

impl Reply for Response {
    fn take(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.take(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn whole(self: Box<Self>) -> Value {
        self.object(vec![self.item(vec![self.part()])])
    }

    fn begin(&mut self) -> Vec<Sent> {
        let (object, item, mut part) = (self.object(Vec::new()), self.item(Vec::new()), self.at());
        part["part"] = self.part();
        vec![
            self.event("response.created", json!({ "response": object })),
            self.event("response.in_progress", json!({ "response": object })),
            self.event("response.output_item.added", json!({ "output_index": 0, "item": item })),
            self.event("response.content_part.added", part),
        ]
    }

    fn more(&mut self, _: usize) -> Vec<Sent> {
        let text = self.inner.first().0;
        let (new, length) = (text[self.sent..].to_owned(), text.len());
        self.sent = length;
        if new.is_empty() {
            return Vec::new();
        }
        let mut delta = self.at();
        delta["delta"] = new.into();
        delta["logprobs"] = json!([]);
        vec![self.event("response.output_text.delta", delta)]
    }

    fn end(&mut self) -> Vec<Sent> {
        let (mut text, mut part) = (self.at(), self.at());
        text["text"] = self.inner.first().0.into();
        text["logprobs"] = json!([]);
        part["part"] = self.part();
        let item = self.item(vec![self.part()]);
        let object = self.object(vec![item.clone()]);
        let last = if self.status() == "completed" { "response.completed" } else { "response.incomplete" };
        vec![
            self.event("response.output_text.done", text),
            self.event("response.content_part.done", part),
            self.event("response.output_item.done", json!({ "output_index": 0, "item": item })),
            self.event(last, json!({ "response": object })),
        ]
    }

    fn broken(&mut self, problem: &Problem) -> Vec<Sent> {
        let error = &problem.error;
        vec![
            self.event(
                "error",
                json!({ "code": error.code, "message": error.message, "param": error.param }),
            ),
        ]
    }
}
