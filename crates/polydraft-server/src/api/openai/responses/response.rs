//! Answer of `/v1/responses` as it grows: a message and tool calls, each an item of its own.

use std::sync::Arc;

use axum::response::{self, IntoResponse};
use polydraft::Token;
use polydraft_engine::Scored;
use serde_json::{Value, json};

use super::store::{Store, Stored};
use crate::api::shared::answer::Answer;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::reader::is_truncated;
use crate::api::shared::sequence::Run;
use crate::api::shared::tokens::{self, Naming};
use crate::api::{Reply, StreamEvent};
use crate::worker::Event;

/// Item of an answer, in the order in which a stream opened them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    /// Reasoning before the answer.
    Reasoning,
    Message,
    /// Call by index, and the bytes of its arguments sent so far.
    Call(usize, usize),
}

impl Item {
    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Call(number, _), Self::Call(other, _)) => number == other,
            (item, other) => item == other,
        }
    }
}

/// An answer as it grows.
pub struct Response {
    inner: Answer,
    id: u128,
    model: String,
    /// Parameters of the request, which the answer repeats.
    settings: Value,
    items: Vec<Item>,
    /// Id of the answer that this one continues.
    previous: Option<String>,
    /// Store for the answer and the conversation before it, unless it is not to be stored.
    storage: Option<(Arc<Store>, Vec<Value>)>,
    /// Bytes of reasoning and of text, and tokens, sent so far.
    sent_reasoning: usize,
    sent_text: usize,
    sent_tokens: usize,
    /// Number of events sent.
    sent_events: usize,
    /// Tokens of the prompt, if prompt and output are returned as tokens.
    prompt: Option<Vec<Token>>,
    /// Whether to include log-probabilities of tokens.
    include_logprobs: bool,
}

impl Response {
    /// Creates an empty answer. `storage` has the store for it and the conversation before it.
    pub fn new(
        inner: Answer,
        model: String,
        settings: Value,
        previous: Option<String>,
        storage: Option<(Arc<Store>, Vec<Value>)>,
    ) -> Self {
        Self {
            inner,
            id: polydraft_runtime::random(),
            model,
            settings,
            items: Vec::new(),
            previous,
            storage,
            sent_reasoning: 0,
            sent_text: 0,
            sent_tokens: 0,
            sent_events: 0,
            prompt: None,
            include_logprobs: true,
        }
    }

    /// Includes prompt and output as tokens, if a prompt is given. `scored` sets whether to include
    /// log-probabilities.
    pub fn include_tokens(&mut self, prompt: Option<Vec<Token>>, scored: bool) {
        (self.prompt, self.include_logprobs) = (prompt, scored);
    }

    /// Scores of tokens to include.
    fn scores(&self) -> &[Scored] {
        if self.include_logprobs { self.inner.scores() } else { &[] }
    }

    /// Object with tokens and their text.
    fn raw_messages(&self, tokens: &[Token]) -> Value {
        let text = self.inner.tokenizer().decode_with_special(tokens).unwrap_or_default();
        json!([{ "type": "raw_message_tokens", "message": text, "tokens": tokens }])
    }

    fn response_id(&self) -> String {
        format!("resp_{:032x}", self.id)
    }

    /// Stores the answer if requested, and returns it.
    fn store_answer(&mut self, object: Value) -> Value {
        if let Some((store, mut items)) = self.storage.take() {
            items.extend(object["output"].as_array().into_iter().flatten().cloned());
            store.insert(self.response_id(), Stored { object: object.clone(), items });
        }
        object
    }

    fn item_id(&self, item: Item) -> String {
        match item {
            Item::Reasoning => format!("rs_{:032x}", self.id),
            Item::Message => format!("msg_{:032x}", self.id),
            Item::Call(number, _) => {
                format!("fc_{:032x}", self.id.wrapping_add(1 + number as u128))
            }
        }
    }

    fn status(&self) -> &'static str {
        match self.inner.first().1 {
            None => "in_progress",
            finish if is_truncated(finish) => "incomplete",
            Some(_) => "completed",
        }
    }

    fn message_part(&self) -> Value {
        let logprobs =
            tokens::chat_logprobs(self.inner.tokenizer(), Naming::String, self.scores().to_vec());
        json!({ "type": "output_text", "text": self.inner.first().0, "annotations": [],
            "logprobs": logprobs })
    }

    fn reasoning_part(&self) -> Value {
        json!({ "type": "reasoning_text", "text": self.inner.reasoning() })
    }

    /// Object of an item, complete or as it begins.
    fn item(&self, item: Item, complete: bool) -> Value {
        let (id, status) = (self.item_id(item), self.status());
        match item {
            Item::Reasoning => {
                let content: Vec<Value> =
                    complete.then(|| self.reasoning_part()).into_iter().collect();
                json!({ "type": "reasoning", "id": id, "status": status, "summary": [],
                    "content": content })
            }
            Item::Message => {
                let content: Vec<Value> =
                    complete.then(|| self.message_part()).into_iter().collect();
                json!({ "type": "message", "id": id, "status": status, "role": "assistant",
                    "content": content })
            }
            Item::Call(number, _) => {
                let call = &self.inner.calls()[number];
                let arguments = if complete { &call.arguments } else { "" };
                json!({ "type": "function_call", "id": id, "status": status, "call_id": call.id,
                    "name": call.name,
                    "arguments": arguments })
            }
        }
    }

    /// All items, in the order in which the model wrote them; text after a call belongs to the same
    /// message as text before it.
    fn all_items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for run in self.inner.runs() {
            let item = match run {
                Run::Reasoning(_) => Item::Reasoning,
                Run::Text(_) => Item::Message,
                Run::Call(number) => Item::Call(*number, 0),
            };
            if !items.contains(&item) {
                items.push(item);
            }
        }
        let has_answer = items.iter().any(|item| *item != Item::Reasoning);
        if !has_answer {
            items.push(Item::Message);
        }
        items
    }

    fn object(&self, output: Vec<Value>) -> Value {
        let usage = self.inner.usage();
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": usage.prompt_tokens_details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": usage.completion_tokens_details,
            "total_tokens": usage.total_tokens,
            "speculation": usage.speculation,
        });
        let status = self.status();
        let reason = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut object = json!({
            "id": self.response_id(),
            "object": "response",
            "created_at": self.inner.created(),
            "status": status,
            "error": null,
            "incomplete_details": reason,
            "model": self.model,
            "output": output,
            "previous_response_id": self.previous,
            "store": self.storage.is_some(),
            "truncation": "disabled",
            "usage": (status != "in_progress").then_some(usage),
        });
        for (name, value) in self.settings.as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        if let Some(prompt) = &self.prompt {
            let written: Vec<Token> =
                self.inner.scores().iter().map(|scored| scored.token).collect();
            object["input_messages"] = self.raw_messages(prompt);
            object["output_messages"] = self.raw_messages(&written);
        }
        object
    }

    /// Creates an event; its data repeats the name.
    fn event(&mut self, name: &'static str, mut data: Value) -> StreamEvent {
        data["type"] = name.into();
        data["sequence_number"] = self.sent_events.into();
        self.sent_events += 1;
        StreamEvent { name: Some(name), data: data.to_string() }
    }

    /// Position of an item, for events.
    fn position(&self, index: usize) -> Value {
        let item = self.items[index];
        let mut position = json!({ "item_id": self.item_id(item), "output_index": index });
        if !matches!(item, Item::Call(..)) {
            position["content_index"] = 0.into();
        }
        position
    }

    /// Opens an item. Returns its index.
    fn open_item(&mut self, item: Item, events: &mut Vec<StreamEvent>) -> usize {
        let index = self.items.len();
        self.items.push(item);
        let added = json!({ "output_index": index, "item": self.item(item, false) });
        events.push(self.event("response.output_item.added", added));
        let empty = match item {
            Item::Message => {
                json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] })
            }
            Item::Reasoning => json!({ "type": "reasoning_text", "text": "" }),
            Item::Call(..) => return index,
        };
        let mut part = self.position(index);
        part["part"] = empty;
        events.push(self.event("response.content_part.added", part));
        index
    }

    /// Opens the message or the reasoning unless it is open. Returns its index.
    fn open_once(&mut self, item: Item, events: &mut Vec<StreamEvent>) -> usize {
        let begun = self.items.iter().position(|other| other.is_same(item));
        begun.unwrap_or_else(|| self.open_item(item, events))
    }
}

impl Reply for Response {
    fn apply(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.apply(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn full_response(mut self: Box<Self>) -> response::Response {
        let object =
            self.object(self.all_items().iter().map(|item| self.item(*item, true)).collect());
        let mut object = self.store_answer(object);
        if self.inner.timing_options().timings {
            object["timings"] = self.inner.timings(0);
        }
        Json(object).into_response()
    }

    fn stream_start(&mut self) -> Vec<StreamEvent> {
        let object = self.object(Vec::new());
        vec![
            self.event("response.created", json!({ "response": object })),
            self.event("response.in_progress", json!({ "response": object })),
        ]
    }

    fn stream_events(&mut self, _: usize) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for (progress, timings) in self.inner.take_progress() {
            if self.inner.timing_options().progress {
                let object = self.object(Vec::new());
                let data = json!({ "response": object, "prompt_progress": progress.to_json(),
                    "timings": timings });
                events.push(self.event("response.in_progress", data));
            }
        }
        // Before the end an answer without text may still call.
        let is_certain = |item: &Item| *item != Item::Message || !self.inner.first().0.is_empty();
        for item in self.all_items().into_iter().filter(is_certain).collect::<Vec<_>>() {
            self.open_once(item, &mut events);
        }
        let reasoning = self.inner.reasoning();
        let (new, length) = (reasoning[self.sent_reasoning..].to_owned(), reasoning.len());
        self.sent_reasoning = length;
        if !new.is_empty() {
            let index = self.open_once(Item::Reasoning, &mut events);
            let mut delta = self.position(index);
            delta["delta"] = new.into();
            events.push(self.event("response.reasoning_text.delta", delta));
        }
        let text = self.inner.first().0;
        let (new, length) = (text[self.sent_text..].to_owned(), text.len());
        self.sent_text = length;
        if !new.is_empty() {
            let index = self.open_once(Item::Message, &mut events);
            let scores = &self.scores()[self.sent_tokens..];
            let (mut delta, scored) = (self.position(index), scores.len());
            delta["logprobs"] = json!(tokens::chat_logprobs(
                self.inner.tokenizer(),
                Naming::String,
                scores.to_vec()
            ));
            self.sent_tokens += scored;
            delta["delta"] = new.into();
            if self.inner.timing_options().timings {
                delta["timings"] = self.inner.timings(0);
            }
            events.push(self.event("response.output_text.delta", delta));
        }
        for number in 0..self.inner.calls().len() {
            let index = self.open_once(Item::Call(number, 0), &mut events);
            let arguments = &self.inner.calls()[number].arguments;
            let Item::Call(_, sent) = self.items[index] else { continue };
            let (new, length) = (arguments[sent..].to_owned(), arguments.len());
            self.items[index] = Item::Call(number, length);
            if !new.is_empty() {
                let mut delta = self.position(index);
                delta["delta"] = new.into();
                events.push(self.event("response.function_call_arguments.delta", delta));
            }
        }
        events
    }

    fn stream_end(&mut self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for item in self.all_items() {
            self.open_once(item, &mut events);
        }
        for index in 0..self.items.len() {
            let (item, mut done) = (self.items[index], self.position(index));
            match item {
                Item::Reasoning => {
                    let (mut part, content) = (done.clone(), self.reasoning_part());
                    done["text"] = content["text"].clone();
                    part["part"] = content;
                    events.push(self.event("response.reasoning_text.done", done));
                    events.push(self.event("response.content_part.done", part));
                }
                Item::Message => {
                    let (mut part, content) = (done.clone(), self.message_part());
                    done["text"] = content["text"].clone();
                    done["logprobs"] = content["logprobs"].clone();
                    part["part"] = content;
                    events.push(self.event("response.output_text.done", done));
                    events.push(self.event("response.content_part.done", part));
                }
                Item::Call(number, _) => {
                    let call = &self.inner.calls()[number];
                    (done["name"], done["arguments"]) = (json!(call.name), json!(call.arguments));
                    events.push(self.event("response.function_call_arguments.done", done));
                }
            }
            let done = json!({ "output_index": index, "item": self.item(item, true) });
            events.push(self.event("response.output_item.done", done));
        }
        let object = self.object(self.items.iter().map(|item| self.item(*item, true)).collect());
        let object = self.store_answer(object);
        let last =
            if self.status() == "completed" { "response.completed" } else { "response.incomplete" };
        let mut data = json!({ "response": object });
        if self.inner.timing_options().timings {
            data["timings"] = self.inner.timings(0);
        }
        events.push(self.event(last, data));
        events
    }

    fn stream_error(&mut self, problem: &Problem) -> Vec<StreamEvent> {
        let error = &problem.error;
        let data = json!({ "code": error.code, "message": error.message, "param": error.param });
        vec![self.event("error", data)]
    }
}
