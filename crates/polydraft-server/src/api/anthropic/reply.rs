//! The answer of `/v1/messages` as it grows: blocks of reasoning, of text, and of calls of tools.

use axum::response::{IntoResponse, Response};
use polydraft_engine::Finish;
use serde_json::{Value, json};

use crate::api::shared::answer::Answer;
use crate::api::shared::conversation::is_cut;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::{Reply, Sent};
use crate::worker::Event;

/// What a stream has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    /// The call of this number.
    Call(usize),
}

/// One answer.
pub struct Message {
    inner: Answer,
    id: String,
    model: String,
    /// Stop strings of the request.
    stops: Vec<String>,
    /// Whether what was computed of the prompt is kept for later ones that begin alike.
    keeps_prompt: bool,
    /// The block that a stream is in, and how many there were before it.
    open: Option<Block>,
    closed: usize,
    /// Bytes of the reasoning and of the text that were sent, and of each call's arguments.
    thought: usize,
    sent: usize,
    called: Vec<usize>,
}

impl Message {
    /// Of nothing yet.
    pub fn new(inner: Answer, model: String, stops: Vec<String>, keeps_prompt: bool) -> Self {
        let id = format!("msg_{:032x}", polydraft_runtime::random::<u128>());
        let (thought, sent, called) = (0, 0, Vec::new());
        let open = None;
        Self { inner, id, model, stops, keeps_prompt, open, closed: 0, thought, sent, called }
    }

    fn stop_reason(&self) -> Option<&'static str> {
        let finish = self.inner.first().1?;
        Some(match finish {
            _ if is_cut(Some(finish)) => "max_tokens",
            _ if !self.inner.calls().is_empty() => "tool_use",
            Finish::Stop => "stop_sequence",
            _ => "end_turn",
        })
    }

    /// The stop string that ended it, where there was only one.
    fn stop_sequence(&self) -> Option<&str> {
        match (self.stop_reason()?, &self.stops[..]) {
            ("stop_sequence", [stop]) => Some(stop),
            _ => None,
        }
    }

    /// The prompt's tokens in three parts: read from the prefix cache, computed and kept in it, and
    /// computed anew by every request. What of it was in the cache is known at the end: until then
    /// all of them are input.
    fn usage(&self) -> Value {
        let usage = self.inner.usage();
        let prompt = usage.prompt_tokens;
        let cached = usage.prompt_tokens_details.cached_tokens.min(prompt);
        let kept = self.keeps_prompt && self.is_complete();
        // The last one's logits are needed: it is computed even where it is in the cache.
        let created = if kept { (prompt - cached).saturating_sub(1) } else { 0 };
        json!({ "input_tokens": prompt - cached - created,
            "cache_creation_input_tokens": created, "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens })
    }

    fn object(&self, content: Vec<Value>) -> Value {
        json!({ "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": self.stop_reason(),
            "stop_sequence": self.stop_sequence(), "usage": self.usage() })
    }

    fn event(name: &'static str, mut data: Value) -> Sent {
        data["type"] = name.into();
        Sent { name: Some(name), data: data.to_string() }
    }

    fn close(&mut self, events: &mut Vec<Sent>) {
        if self.open.take().is_some() {
            events.push(Self::event("content_block_stop", json!({ "index": self.closed })));
            self.closed += 1;
        }
    }

    /// More of a block, which is begun if it was not.
    fn delta(&mut self, block: Block, begun: Value, delta: Value, events: &mut Vec<Sent>) {
        if self.open != Some(block) {
            self.close(events);
            self.open = Some(block);
            let start = json!({ "index": self.closed, "content_block": begun });
            events.push(Self::event("content_block_start", start));
        }
        let delta = json!({ "index": self.closed, "delta": delta });
        events.push(Self::event("content_block_delta", delta));
    }
}

impl Reply for Message {
    fn take(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.take(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn whole(self: Box<Self>) -> Response {
        let mut content = Vec::new();
        let (thoughts, text) = (self.inner.reasoning(), self.inner.first().0);
        if !thoughts.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": thoughts, "signature": "" }));
        }
        if !text.is_empty() || self.inner.calls().is_empty() {
            content.push(json!({ "type": "text", "text": text }));
        }
        content.extend(self.inner.calls().iter().map(|call| {
            json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.parsed() })
        }));
        Json(self.object(content)).into_response()
    }

    fn begin(&mut self) -> Vec<Sent> {
        let message = self.object(Vec::new());
        vec![Self::event("message_start", json!({ "message": message }))]
    }

    fn more(&mut self, _: usize) -> Vec<Sent> {
        let mut events = Vec::new();
        let new = self.inner.reasoning()[self.thought..].to_owned();
        if !new.is_empty() {
            self.thought += new.len();
            let begun = json!({ "type": "thinking", "thinking": "", "signature": "" });
            let delta = json!({ "type": "thinking_delta", "thinking": new });
            self.delta(Block::Thinking, begun, delta, &mut events);
        }
        let new = self.inner.first().0[self.sent..].to_owned();
        if !new.is_empty() {
            self.sent += new.len();
            let begun = json!({ "type": "text", "text": "" });
            self.delta(
                Block::Text,
                begun,
                json!({ "type": "text_delta", "text": new }),
                &mut events,
            );
        }
        for number in 0..self.inner.calls().len() {
            let call = &self.inner.calls()[number];
            let first = self.called.len() <= number;
            let told = self.called.get(number).copied().unwrap_or(0);
            let new = call.arguments[told..].to_owned();
            if new.is_empty() && !first {
                continue;
            }
            let begun =
                json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
            let length = call.arguments.len();
            match self.called.get_mut(number) {
                Some(told) => *told = length,
                None => self.called.push(length),
            }
            let delta = json!({ "type": "input_json_delta", "partial_json": new });
            self.delta(Block::Call(number), begun, delta, &mut events);
        }
        events
    }

    fn end(&mut self) -> Vec<Sent> {
        let mut events = Vec::new();
        self.close(&mut events);
        let delta = json!({ "stop_reason": self.stop_reason(),
            "stop_sequence": self.stop_sequence() });
        let delta = json!({ "delta": delta, "usage": self.usage() });
        events.push(Self::event("message_delta", delta));
        events.push(Self::event("message_stop", json!({})));
        events
    }

    fn broken(&mut self, problem: &Problem) -> Vec<Sent> {
        vec![Self::event("error", problem.for_anthropic())]
    }
}
