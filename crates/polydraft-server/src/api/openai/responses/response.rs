//! The answer of `/v1/responses` as it grows: a message, and calls of tools, each an item of its
//! own.

use std::sync::Arc;

use axum::response::{self, IntoResponse};
use polydraft::Token;
use polydraft_engine::Scored;
use serde_json::{Value, json};

use super::store::{Store, Stored};
use crate::api::shared::answer::Answer;
use crate::api::shared::conversation::is_cut;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::tokens::{self, Naming};
use crate::api::{Reply, Sent};
use crate::worker::Event;

/// What a stream has begun, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    /// What the model thought.
    Reasoning,
    Message,
    /// The call of this number, of which so many bytes of arguments were sent.
    Call(usize, usize),
}

/// One answer.
pub struct Response {
    inner: Answer,
    id: u128,
    model: String,
    /// The parameters of the request, which the answer repeats.
    settings: Value,
    items: Vec<Item>,
    /// The answer that this one goes on with.
    previous: Option<String>,
    /// Where it is to be stored, and the conversation up to it.
    keeping: Option<(Arc<Store>, Vec<Value>)>,
    /// Bytes of the reasoning and of the text, and tokens, that were sent.
    thought: usize,
    sent: usize,
    scored: usize,
    /// Events that were sent.
    sequence: usize,
    /// The prompt, where it and the output are told as tokens.
    prompt: Option<Vec<Token>>,
    /// Whether tokens' log-probabilities are told.
    told_scores: bool,
}

impl Response {
    /// Of nothing yet. `keeping` is where it is to be stored, and the conversation up to it.
    pub fn new(
        inner: Answer,
        model: String,
        settings: Value,
        previous: Option<String>,
        keeping: Option<(Arc<Store>, Vec<Value>)>,
    ) -> Self {
        Self {
            inner,
            id: polydraft_runtime::random(),
            model,
            settings,
            items: Vec::new(),
            previous,
            keeping,
            thought: 0,
            sent: 0,
            scored: 0,
            sequence: 0,
            prompt: None,
            told_scores: true,
        }
    }

    /// It has the prompt and the output as tokens, if there is a prompt; whether log-probabilities
    /// are told besides.
    pub fn tells_tokens(&mut self, prompt: Option<Vec<Token>>, scored: bool) {
        (self.prompt, self.told_scores) = (prompt, scored);
    }

    /// The scores of tokens that are told.
    fn scores(&self) -> &[Scored] {
        if self.told_scores { self.inner.scores() } else { &[] }
    }

    /// Tokens, and their text.
    fn raw(&self, tokens: &[Token]) -> Value {
        let text = self.inner.tokenizer().decode_all(tokens).unwrap_or_default();
        json!([{ "type": "raw_message_tokens", "message": text, "tokens": tokens }])
    }

    fn own_id(&self) -> String {
        format!("resp_{:032x}", self.id)
    }

    /// Stores the answer, if it is to be, and returns it.
    fn kept(&mut self, object: Value) -> Value {
        if let Some((store, mut items)) = self.keeping.take() {
            items.extend(object["output"].as_array().into_iter().flatten().cloned());
            store.insert(self.own_id(), Stored { object: object.clone(), items });
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
            finish if is_cut(finish) => "incomplete",
            Some(_) => "completed",
        }
    }

    fn part(&self) -> Value {
        let logprobs = tokens::chat(self.inner.tokenizer(), Naming::String, self.scores().to_vec());
        json!({ "type": "output_text", "text": self.inner.first().0, "annotations": [],
            "logprobs": logprobs })
    }

    fn thoughts(&self) -> Value {
        json!({ "type": "reasoning_text", "text": self.inner.reasoning() })
    }

    /// An item, whole or as it begins.
    fn item(&self, item: Item, whole: bool) -> Value {
        let (id, status) = (self.item_id(item), self.status());
        match item {
            Item::Reasoning => {
                let content: Vec<Value> = whole.then(|| self.thoughts()).into_iter().collect();
                json!({ "type": "reasoning", "id": id, "status": status, "summary": [],
                    "content": content })
            }
            Item::Message => {
                let content: Vec<Value> = whole.then(|| self.part()).into_iter().collect();
                json!({ "type": "message", "id": id, "status": status, "role": "assistant",
                    "content": content })
            }
            Item::Call(number, _) => {
                let call = &self.inner.calls()[number];
                let arguments = if whole { &call.arguments } else { "" };
                json!({ "type": "function_call", "id": id, "status": status, "call_id": call.id,
                    "name": call.name,
                    "arguments": arguments })
            }
        }
    }

    /// All items: those that were begun, in their order, or the text and the calls.
    fn all(&self) -> Vec<Item> {
        if !self.items.is_empty() {
            return self.items.clone();
        }
        let calls = (0..self.inner.calls().len()).map(|number| Item::Call(number, 0));
        let text = self.inner.calls().is_empty() || !self.inner.first().0.is_empty();
        let thoughts = (!self.inner.reasoning().is_empty()).then_some(Item::Reasoning);
        thoughts.into_iter().chain(text.then_some(Item::Message)).chain(calls).collect()
    }

    fn object(&self, output: Vec<Value>) -> Value {
        let usage = self.inner.usage();
        let usage = json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": usage.prompt_tokens_details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.total_tokens,
            "speculation": usage.speculation,
        });
        let status = self.status();
        let reason = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut object = json!({
            "id": self.own_id(),
            "object": "response",
            "created_at": self.inner.created(),
            "status": status,
            "error": null,
            "incomplete_details": reason,
            "model": self.model,
            "output": output,
            "previous_response_id": self.previous,
            "store": self.keeping.is_some(),
            "truncation": "disabled",
            "usage": (status != "in_progress").then_some(usage),
        });
        for (name, value) in self.settings.as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        if let Some(prompt) = &self.prompt {
            let written: Vec<Token> =
                self.inner.scores().iter().map(|scored| scored.token).collect();
            object["input_messages"] = self.raw(prompt);
            object["output_messages"] = self.raw(&written);
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
    fn at(&self, index: usize) -> Value {
        let item = self.items[index];
        let mut at = json!({ "item_id": self.item_id(item), "output_index": index });
        if !matches!(item, Item::Call(..)) {
            at["content_index"] = 0.into();
        }
        at
    }

    /// Begins an item; its place.
    fn open(&mut self, item: Item, events: &mut Vec<Sent>) -> usize {
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
        let mut part = self.at(index);
        part["part"] = empty;
        events.push(self.event("response.content_part.added", part));
        index
    }

    /// The message or the reasoning, begun if it was not.
    fn begun(&mut self, item: Item, events: &mut Vec<Sent>) -> usize {
        let begun = self.items.iter().position(|other| *other == item);
        begun.unwrap_or_else(|| self.open(item, events))
    }
}

impl Reply for Response {
    fn take(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.take(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn whole(mut self: Box<Self>) -> response::Response {
        let object = self.object(self.all().iter().map(|item| self.item(*item, true)).collect());
        let mut object = self.kept(object);
        if self.inner.told().timings {
            object["timings"] = self.inner.timings(0);
        }
        Json(object).into_response()
    }

    fn begin(&mut self) -> Vec<Sent> {
        let object = self.object(Vec::new());
        vec![
            self.event("response.created", json!({ "response": object })),
            self.event("response.in_progress", json!({ "response": object })),
        ]
    }

    fn more(&mut self, _: usize) -> Vec<Sent> {
        let mut events = Vec::new();
        for (progress, timings) in self.inner.take_progress() {
            if self.inner.told().progress {
                let object = self.object(Vec::new());
                let told = json!({ "response": object, "prompt_progress": progress.told(),
                    "timings": timings });
                events.push(self.event("response.in_progress", told));
            }
        }
        let thoughts = self.inner.reasoning();
        let (new, length) = (thoughts[self.thought..].to_owned(), thoughts.len());
        self.thought = length;
        if !new.is_empty() {
            let index = self.begun(Item::Reasoning, &mut events);
            let mut delta = self.at(index);
            delta["delta"] = new.into();
            events.push(self.event("response.reasoning_text.delta", delta));
        }
        let text = self.inner.first().0;
        let (new, length) = (text[self.sent..].to_owned(), text.len());
        self.sent = length;
        if !new.is_empty() {
            let index = self.begun(Item::Message, &mut events);
            let scores = &self.scores()[self.scored..];
            let (mut delta, scored) = (self.at(index), scores.len());
            delta["logprobs"] =
                json!(tokens::chat(self.inner.tokenizer(), Naming::String, scores.to_vec()));
            self.scored += scored;
            delta["delta"] = new.into();
            if self.inner.told().timings {
                delta["timings"] = self.inner.timings(0);
            }
            events.push(self.event("response.output_text.delta", delta));
        }
        for number in 0..self.inner.calls().len() {
            let begun =
                self.items.iter().position(|item| matches!(item, Item::Call(n, _) if *n == number));
            let index = begun.unwrap_or_else(|| self.open(Item::Call(number, 0), &mut events));
            let arguments = &self.inner.calls()[number].arguments;
            let Item::Call(_, told) = self.items[index] else { continue };
            let (new, length) = (arguments[told..].to_owned(), arguments.len());
            self.items[index] = Item::Call(number, length);
            if !new.is_empty() {
                let mut delta = self.at(index);
                delta["delta"] = new.into();
                events.push(self.event("response.function_call_arguments.delta", delta));
            }
        }
        events
    }

    fn end(&mut self) -> Vec<Sent> {
        let mut events = Vec::new();
        if self.items.is_empty() {
            self.open(Item::Message, &mut events);
        }
        for index in 0..self.items.len() {
            let (item, mut done) = (self.items[index], self.at(index));
            match item {
                Item::Reasoning => {
                    let (mut part, whole) = (done.clone(), self.thoughts());
                    done["text"] = whole["text"].clone();
                    part["part"] = whole;
                    events.push(self.event("response.reasoning_text.done", done));
                    events.push(self.event("response.content_part.done", part));
                }
                Item::Message => {
                    let (mut part, whole) = (done.clone(), self.part());
                    done["text"] = whole["text"].clone();
                    done["logprobs"] = whole["logprobs"].clone();
                    part["part"] = whole;
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
        let object = self.kept(object);
        let last =
            if self.status() == "completed" { "response.completed" } else { "response.incomplete" };
        let mut data = json!({ "response": object });
        if self.inner.told().timings {
            data["timings"] = self.inner.timings(0);
        }
        events.push(self.event(last, data));
        events
    }

    fn broken(&mut self, problem: &Problem) -> Vec<Sent> {
        let error = &problem.error;
        let data = json!({ "code": error.code, "message": error.message, "param": error.param });
        vec![self.event("error", data)]
    }
}
