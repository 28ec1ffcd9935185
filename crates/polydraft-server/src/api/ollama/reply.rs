//! Answers of Ollama's routes, full or as lines.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::shared::answer::Answer;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::reader::is_truncated;
use crate::api::shared::sequence::Call;
use crate::api::{Reply, StreamEvent};
use crate::worker::Event;

/// Route of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
}

/// An answer as it grows.
pub struct LinesReply {
    inner: Answer,
    model: String,
    kind: Kind,
    started: Instant,
    /// Time to the first event, as the approximate end of the prefill.
    first_event: Option<Duration>,
    /// Bytes of reasoning and of text, and number of calls, sent so far.
    sent_reasoning: usize,
    sent_text: usize,
    sent_calls: usize,
}

impl LinesReply {
    /// Creates an empty answer.
    pub fn new(inner: Answer, model: String, kind: Kind) -> Self {
        let started = Instant::now();
        Self {
            inner,
            model,
            kind,
            started,
            first_event: None,
            sent_reasoning: 0,
            sent_text: 0,
            sent_calls: 0,
        }
    }

    fn line(&self, text: &str, thoughts: &str, calls: &[Call]) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let mut line = json!({ "model": self.model, "created_at": time(now) });
        let target = match self.kind {
            Kind::Generate => {
                line["response"] = text.into();
                &mut line
            }
            Kind::Chat => {
                line["message"] = json!({ "role": "assistant", "content": text });
                &mut line["message"]
            }
        };
        if !thoughts.is_empty() {
            target["thinking"] = thoughts.into();
        }
        if !calls.is_empty() {
            let tool_call = |call: &Call| {
                let function = json!({ "name": call.name, "arguments": call.parsed() });
                json!({ "function": function })
            };
            target["tool_calls"] = calls.iter().map(tool_call).collect();
        }
        line["done"] = false.into();
        line
    }

    /// Adds the fields of the last line.
    fn with_final_fields(&self, mut line: Value) -> Value {
        let usage = self.inner.usage();
        let truncated = is_truncated(self.inner.first().1);
        let (total, first_event) = (self.started.elapsed(), self.first_event.unwrap_or_default());
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let last = json!({ "done": true, "done_reason": if truncated { "length" } else { "stop" },
            "total_duration": nanoseconds(total), "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first_event),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(total.saturating_sub(first_event)) });
        for (name, value) in last.as_object().into_iter().flatten() {
            line[name] = value.clone();
        }
        line
    }
}

impl Reply for LinesReply {
    fn apply(&mut self, event: Event) -> Result<usize, Problem> {
        self.first_event.get_or_insert_with(|| self.started.elapsed());
        self.inner.apply(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn full_response(self: Box<Self>) -> Response {
        let (text, thoughts) = (self.inner.first().0, self.inner.reasoning());
        Json(self.with_final_fields(self.line(text, thoughts, self.inner.calls()))).into_response()
    }

    fn stream_events(&mut self, _: usize) -> Vec<StreamEvent> {
        let (text, thoughts) = (self.inner.first().0, self.inner.reasoning());
        let (new, sent_reasoning) = (&text[self.sent_text..], &thoughts[self.sent_reasoning..]);
        // Calls are sent complete: once the next one begins, or the answer ends.
        let calls = self.inner.calls();
        let ready = if self.is_complete() { calls.len() } else { calls.len().saturating_sub(1) };
        let sent_calls = &calls[self.sent_calls..ready.max(self.sent_calls)];
        if new.is_empty() && sent_reasoning.is_empty() && sent_calls.is_empty() {
            return Vec::new();
        }
        let line = self.line(new, sent_reasoning, sent_calls);
        (self.sent_text, self.sent_reasoning, self.sent_calls) =
            (text.len(), thoughts.len(), ready.max(self.sent_calls));
        vec![StreamEvent::unnamed(line)]
    }

    fn stream_end(&mut self) -> Vec<StreamEvent> {
        vec![StreamEvent::unnamed(self.with_final_fields(self.line("", "", &[])))]
    }

    fn stream_error(&mut self, problem: &Problem) -> Vec<StreamEvent> {
        vec![StreamEvent::unnamed(problem.for_ollama())]
    }
}

/// Formats seconds since 1970 as in RFC 3339.
pub fn time(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}
