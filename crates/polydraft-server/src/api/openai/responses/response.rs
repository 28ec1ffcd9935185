//! Answer of `/v1/responses` as it grows: each run of reasoning or text, and each call, is an item.

use std::ops::Range;
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

/// An answer as it grows.
pub struct Response {
    inner: Answer,
    id: u128,
    model: String,
    /// Parameters of the request, which the answer repeats.
    settings: Value,
    /// Id of the answer that this one continues.
    previous: Option<String>,
    /// Store for the answer and the conversation before it, unless it is not to be stored.
    storage: Option<(Arc<Store>, Vec<Value>)>,
    /// Items closed so far, and whether the next one is open.
    closed: usize,
    is_open: bool,
    /// Bytes of the open item, and tokens of messages, sent so far.
    sent_bytes: usize,
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
            previous,
            storage,
            closed: 0,
            is_open: false,
            sent_bytes: 0,
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

    /// Run of an item; after the last one an empty message may follow.
    fn run(&self, index: usize) -> Run {
        self.inner.runs().get(index).copied().unwrap_or(Run::Text(0))
    }

    fn item_id(&self, index: usize) -> String {
        let kind = match self.run(index) {
            Run::Reasoning(_) => "rs",
            Run::Text(_) => "msg",
            Run::Call(_) => "fc",
        };
        format!("{kind}_{:032x}", self.id.wrapping_add(index as u128))
    }

    fn status(&self) -> &'static str {
        match self.inner.first().1 {
            None => "in_progress",
            finish if is_truncated(finish) => "incomplete",
            Some(_) => "completed",
        }
    }

    /// Text of an item so far: reasoning, text, or the arguments of a call.
    fn content(&self, index: usize) -> &str {
        let bytes = |run: &Run| match (run, self.run(index)) {
            (Run::Reasoning(bytes), Run::Reasoning(_)) | (Run::Text(bytes), Run::Text(_)) => *bytes,
            _ => 0,
        };
        let runs = self.inner.runs();
        let start = runs[..index.min(runs.len())].iter().map(bytes).sum();
        match self.run(index) {
            Run::Reasoning(length) => &self.inner.reasoning()[start..start + length],
            Run::Text(length) => &self.inner.first().0[start..start + length],
            Run::Call(number) => &self.inner.calls()[number].arguments,
        }
    }

    /// Tokens of a message: those after the message before it, since a step of the engine may end
    /// one item and begin the next; a last item has all that follow.
    fn message_tokens(&self, index: usize) -> Range<usize> {
        let (ends, length) = (self.inner.run_ends(), self.scores().len());
        let before = self.inner.runs().iter().zip(ends).take(index);
        let messages = before.filter(|(run, _)| matches!(run, Run::Text(_)));
        let start = messages.map(|(_, end)| *end).next_back().unwrap_or(0).min(length);
        let end = if index + 1 < ends.len() { ends[index] } else { length };
        start..end.min(length).max(start)
    }

    fn logprobs(&self, tokens: Range<usize>) -> Value {
        let scores = self.scores()[tokens].to_vec();
        json!(tokens::chat_logprobs(self.inner.tokenizer(), Naming::String, scores))
    }

    /// Content of an item: a part of a message or of the reasoning; `None` for calls.
    fn part(&self, index: usize, complete: bool) -> Option<Value> {
        let text = if complete { self.content(index) } else { "" };
        let tokens = if complete { self.message_tokens(index) } else { 0..0 };
        match self.run(index) {
            Run::Reasoning(_) => Some(json!({ "type": "reasoning_text", "text": text })),
            Run::Text(_) => Some(json!({ "type": "output_text", "text": text, "annotations": [],
                "logprobs": self.logprobs(tokens) })),
            Run::Call(_) => None,
        }
    }

    /// Object of an item, complete or as it begins.
    fn item(&self, index: usize, complete: bool) -> Value {
        let is_last = index + 1 >= self.inner.runs().len();
        let status = match complete {
            false => "in_progress",
            true if is_last && self.status() == "incomplete" => "incomplete",
            true => "completed",
        };
        let id = self.item_id(index);
        let content: Vec<Value> =
            Some(index).filter(|_| complete).and_then(|i| self.part(i, true)).into_iter().collect();
        match self.run(index) {
            Run::Reasoning(_) => json!({ "type": "reasoning", "id": id, "status": status,
                "summary": [], "content": content }),
            Run::Text(_) => json!({ "type": "message", "id": id, "status": status,
                "role": "assistant", "content": content }),
            Run::Call(number) => {
                let call = &self.inner.calls()[number];
                let arguments = if complete { &call.arguments } else { "" };
                json!({ "type": "function_call", "id": id, "status": status, "call_id": call.id,
                    "name": call.name, "arguments": arguments })
            }
        }
    }

    /// All items, in the order in which the model wrote them. An answer without text or calls has
    /// an empty message.
    fn all_items(&self) -> Vec<Value> {
        let runs = self.inner.runs();
        let has_answer = runs.iter().any(|run| !matches!(run, Run::Reasoning(_)));
        let count = runs.len() + usize::from(!has_answer);
        (0..count).map(|index| self.item(index, true)).collect()
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
        let mut position = json!({ "item_id": self.item_id(index), "output_index": index });
        if !matches!(self.run(index), Run::Call(_)) {
            position["content_index"] = 0.into();
        }
        position
    }

    /// Opens the next item unless it is open.
    fn open_item(&mut self, events: &mut Vec<StreamEvent>) {
        if std::mem::replace(&mut self.is_open, true) {
            return;
        }
        let index = self.closed;
        self.sent_bytes = 0;
        self.sent_tokens = self.message_tokens(index).start;
        let added = json!({ "output_index": index, "item": self.item(index, false) });
        events.push(self.event("response.output_item.added", added));
        if let Some(empty) = self.part(index, false) {
            let mut part = self.position(index);
            part["part"] = empty;
            events.push(self.event("response.content_part.added", part));
        }
    }

    /// Sends what is new of the open item.
    fn extend_item(&mut self, events: &mut Vec<StreamEvent>) {
        let index = self.closed;
        let new = self.content(index)[self.sent_bytes..].to_owned();
        if new.is_empty() {
            return;
        }
        self.sent_bytes += new.len();
        let mut delta = self.position(index);
        let name = match self.run(index) {
            Run::Reasoning(_) => "response.reasoning_text.delta",
            Run::Text(_) => {
                let end = self.message_tokens(index).end;
                delta["logprobs"] = self.logprobs(self.sent_tokens.min(end)..end);
                self.sent_tokens = end;
                if self.inner.timing_options().timings {
                    delta["timings"] = self.inner.timings(0);
                }
                "response.output_text.delta"
            }
            Run::Call(_) => "response.function_call_arguments.delta",
        };
        delta["delta"] = new.into();
        events.push(self.event(name, delta));
    }

    /// Closes the open item.
    fn close_item(&mut self, events: &mut Vec<StreamEvent>) {
        let index = self.closed;
        let mut done = self.position(index);
        match (self.run(index), self.part(index, true)) {
            (Run::Call(number), _) => {
                let call = &self.inner.calls()[number];
                (done["name"], done["arguments"]) = (json!(call.name), json!(call.arguments));
                events.push(self.event("response.function_call_arguments.done", done));
            }
            (run, content) => {
                let (mut part, content) = (done.clone(), content.unwrap_or_default());
                done["text"] = content["text"].clone();
                let mut name = "response.reasoning_text.done";
                if matches!(run, Run::Text(_)) {
                    done["logprobs"] = content["logprobs"].clone();
                    name = "response.output_text.done";
                }
                part["part"] = content;
                events.push(self.event(name, done));
                events.push(self.event("response.content_part.done", part));
            }
        }
        let done = json!({ "output_index": index, "item": self.item(index, true) });
        events.push(self.event("response.output_item.done", done));
        (self.closed, self.is_open) = (index + 1, false);
    }

    /// Sends what is new: an item is closed when the next one begins.
    fn send_items(&mut self, events: &mut Vec<StreamEvent>) {
        while self.closed < self.inner.runs().len() {
            self.open_item(events);
            self.extend_item(events);
            if self.closed + 1 == self.inner.runs().len() {
                break;
            }
            self.close_item(events);
        }
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
        let object = self.object(self.all_items());
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
        self.send_items(&mut events);
        events
    }

    fn stream_end(&mut self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        self.send_items(&mut events);
        if self.is_open {
            self.close_item(&mut events);
        }
        let items = self.all_items();
        // An empty message.
        if self.closed < items.len() {
            self.open_item(&mut events);
            self.close_item(&mut events);
        }
        let object = self.object(items);
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
