//! Answer of `/v1/messages` as it grows: blocks of reasoning, text, and tool calls.

use axum::response::{IntoResponse, Response};
use polydraft_engine::Finish;
use serde_json::{Value, json};

use crate::api::shared::answer::Answer;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::reader::is_truncated;
use crate::api::shared::sequence::Run;
use crate::api::{Reply, StreamEvent};
use crate::worker::Event;

/// An answer as it grows.
pub struct Message {
    inner: Answer,
    id: String,
    model: String,
    /// Stop strings of the request.
    stops: Vec<String>,
    /// Whether the target keeps the KV cache of a prompt for later prompts with the same prefix.
    caches_prompts: bool,
    /// The run of the open block of a stream, and the number of blocks closed before it.
    open: Option<usize>,
    closed: usize,
    /// Number of runs sent completely, and bytes sent of the next one: of its arguments, if it is a
    /// call.
    sent_runs: usize,
    sent_bytes: usize,
    /// Bytes of reasoning and of text in the runs sent completely.
    sent_reasoning: usize,
    sent_text: usize,
}

impl Message {
    /// Creates an empty answer.
    pub fn new(inner: Answer, model: String, stops: Vec<String>, caches_prompts: bool) -> Self {
        let id = format!("msg_{:032x}", polydraft_runtime::random::<u128>());
        Self {
            inner,
            id,
            model,
            stops,
            caches_prompts,
            open: None,
            closed: 0,
            sent_runs: 0,
            sent_bytes: 0,
            sent_reasoning: 0,
            sent_text: 0,
        }
    }

    fn stop_reason(&self) -> Option<&'static str> {
        let finish = self.inner.first().1?;
        Some(match finish {
            _ if is_truncated(Some(finish)) => "max_tokens",
            _ if !self.inner.calls().is_empty() => "tool_use",
            Finish::Stop => "stop_sequence",
            _ => "end_turn",
        })
    }

    /// The stop string that ended the answer, known if the request has only one.
    fn stop_sequence(&self) -> Option<&str> {
        match (self.stop_reason()?, &self.stops[..]) {
            ("stop_sequence", [stop]) => Some(stop),
            _ => None,
        }
    }

    /// Token counts. The prompt's tokens are in three parts: read from the prefix cache, computed
    /// and written to it, and computed by every request. The cached part is known only at the end;
    /// until then all tokens count as input.
    fn usage(&self) -> Value {
        let usage = self.inner.usage();
        let prompt = usage.prompt_tokens;
        let cached = usage.prompt_tokens_details.cached_tokens.min(prompt);
        let caches = self.caches_prompts && self.is_complete();
        // The last token is computed even if it is cached, because its logits are needed.
        let created = if caches { (prompt - cached).saturating_sub(1) } else { 0 };
        json!({ "input_tokens": prompt - cached - created,
            "cache_creation_input_tokens": created, "cache_read_input_tokens": cached,
            "output_tokens": usage.completion_tokens })
    }

    fn object(&self, content: Vec<Value>) -> Value {
        json!({ "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": self.stop_reason(),
            "stop_sequence": self.stop_sequence(), "usage": self.usage() })
    }

    fn event(name: &'static str, mut data: Value) -> StreamEvent {
        data["type"] = name.into();
        StreamEvent { name: Some(name), data: data.to_string() }
    }

    fn close(&mut self, events: &mut Vec<StreamEvent>) {
        if self.open.take().is_some() {
            events.push(Self::event("content_block_stop", json!({ "index": self.closed })));
            self.closed += 1;
        }
    }

    /// Sends a delta of a block, after opening it if necessary.
    fn delta(
        &mut self,
        block: usize,
        block_start: Value,
        delta: Value,
        events: &mut Vec<StreamEvent>,
    ) {
        if self.open != Some(block) {
            self.close(events);
            self.open = Some(block);
            let start = json!({ "index": self.closed, "content_block": block_start });
            events.push(Self::event("content_block_start", start));
        }
        let delta = json!({ "index": self.closed, "delta": delta });
        events.push(Self::event("content_block_delta", delta));
    }
}

impl Reply for Message {
    fn apply(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.apply(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn full_response(self: Box<Self>) -> Response {
        let (mut thoughts, mut text) = (self.inner.reasoning(), self.inner.first().0);
        let mut content: Vec<Value> = Vec::new();
        for run in self.inner.runs() {
            content.push(match run {
                Run::Reasoning(bytes) => {
                    let (new, rest) = thoughts.split_at(*bytes);
                    thoughts = rest;
                    json!({ "type": "thinking", "thinking": new, "signature": "" })
                }
                Run::Text(bytes) => {
                    let (new, rest) = text.split_at(*bytes);
                    text = rest;
                    json!({ "type": "text", "text": new })
                }
                Run::Call(number) => {
                    let call = &self.inner.calls()[*number];
                    json!({ "type": "tool_use", "id": call.id, "name": call.name,
                        "input": call.parsed() })
                }
            });
        }
        if content.is_empty() {
            content.push(json!({ "type": "text", "text": "" }));
        }
        Json(self.object(content)).into_response()
    }

    fn stream_start(&mut self) -> Vec<StreamEvent> {
        let message = self.object(Vec::new());
        vec![Self::event("message_start", json!({ "message": message }))]
    }

    fn stream_events(&mut self, _: usize) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        while let Some(run) = self.inner.runs().get(self.sent_runs).copied() {
            let (block, delta, length) = match run {
                Run::Reasoning(bytes) => {
                    let range = self.sent_reasoning + self.sent_bytes..self.sent_reasoning + bytes;
                    let new = &self.inner.reasoning()[range];
                    (
                        json!({ "type": "thinking", "thinking": "", "signature": "" }),
                        json!({ "type": "thinking_delta", "thinking": new }),
                        bytes,
                    )
                }
                Run::Text(bytes) => {
                    let range = self.sent_text + self.sent_bytes..self.sent_text + bytes;
                    let new = &self.inner.first().0[range];
                    (
                        json!({ "type": "text", "text": "" }),
                        json!({ "type": "text_delta", "text": new }),
                        bytes,
                    )
                }
                Run::Call(number) => {
                    let call = &self.inner.calls()[number];
                    let new = &call.arguments[self.sent_bytes..];
                    (
                        json!({ "type": "tool_use", "id": call.id, "name": call.name,
                            "input": {} }),
                        json!({ "type": "input_json_delta", "partial_json": new }),
                        call.arguments.len(),
                    )
                }
            };
            if length > self.sent_bytes || self.open != Some(self.sent_runs) {
                self.delta(self.sent_runs, block, delta, &mut events);
            }
            self.sent_bytes = length;
            if self.sent_runs + 1 == self.inner.runs().len() {
                break;
            }
            match run {
                Run::Reasoning(bytes) => self.sent_reasoning += bytes,
                Run::Text(bytes) => self.sent_text += bytes,
                Run::Call(_) => {}
            }
            (self.sent_runs, self.sent_bytes) = (self.sent_runs + 1, 0);
        }
        events
    }

    fn stream_end(&mut self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        if self.open.is_none() && self.closed == 0 {
            // Clients expect a block.
            let (block, delta) = (
                json!({ "type": "text", "text": "" }),
                json!({ "type": "text_delta", "text": "" }),
            );
            self.delta(0, block, delta, &mut events);
        }
        self.close(&mut events);
        let delta = json!({ "stop_reason": self.stop_reason(),
            "stop_sequence": self.stop_sequence() });
        let delta = json!({ "delta": delta, "usage": self.usage() });
        events.push(Self::event("message_delta", delta));
        events.push(Self::event("message_stop", json!({})));
        events
    }

    fn stream_error(&mut self, problem: &Problem) -> Vec<StreamEvent> {
        vec![Self::event("error", problem.for_anthropic())]
    }
}
