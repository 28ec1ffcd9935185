//! Answers as server-sent events: one chunk for every step of a text, then `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::Answer;
use crate::api::error::Problem;
use crate::worker::Event;

/// A sign of life where nothing else is to be said for so long.
const ALIVE: Duration = Duration::from_secs(15);

struct Flow {
    answer: Answer,
    events: UnboundedReceiver<Event>,
    /// What is to be sent before anything else happens.
    ready: VecDeque<String>,
    ended: bool,
}

/// The answer, as it is decided. A client that reads slowly holds up nobody: what it has not read yet is kept, and its own
/// limit of tokens bounds it.
pub fn of(answer: Answer, events: UnboundedReceiver<Event>) -> Response {
    let flow = Flow { answer, events, ready: VecDeque::new(), ended: false };
    let stream = unfold(flow, |mut flow| async move {
        let data = flow.next().await?;
        Some((Ok::<_, Infallible>(Sent::default().data(data)), flow))
    });
    let alive = KeepAlive::new().interval(ALIVE);
    // Proxies are not to collect what is meant to be seen at once.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    ([unbuffered], Sse::new(stream).keep_alive(alive)).into_response()
}

impl Flow {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            if self.ended {
                return None;
            }
            let event = self.events.recv().await;
            let taken = event.ok_or_else(Problem::internal).and_then(|event| self.answer.take(event));
            match taken {
                Ok(text) => self.ready.push_back(self.answer.chunk(text).to_string()),
                Err(problem) => {
                    // The status is sent already: the error comes as a chunk.
                    self.ready.extend(serde_json::to_string(&problem));
                    self.end();
                }
            }
            if !self.ended && self.answer.is_complete() {
                self.ready.extend(self.answer.usage_chunk().map(|chunk| chunk.to_string()));
                self.end();
            }
        }
    }

    fn end(&mut self) {
        self.ready.push_back("[DONE]".to_owned());
        self.ended = true;
        self.events.close();
    }
}
