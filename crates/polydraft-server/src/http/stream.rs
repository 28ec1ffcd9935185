//! Answers as server-sent events, step by step.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::error::Problem;
use crate::api::{Reply, Sent};
use crate::worker::Event;

/// A sign of life where nothing else is to be said for so long.
const ALIVE: Duration = Duration::from_secs(15);

struct Flow {
    answer: Box<dyn Reply>,
    events: UnboundedReceiver<Event>,
    /// What is to be sent before anything else happens.
    ready: VecDeque<Sent>,
    ended: bool,
}

/// The answer, as it is decided. A client that reads slowly holds up nobody: what it has not read yet is kept, and its own
/// limit of tokens bounds it.
pub fn of(mut answer: Box<dyn Reply>, events: UnboundedReceiver<Event>) -> Response {
    let ready = answer.begin().into();
    let flow = Flow { answer, events, ready, ended: false };
    let stream = unfold(flow, |mut flow| async move {
        let Sent { name, data } = flow.next().await?;
        let event = name.map_or_else(Line::default, |name| Line::default().event(name));
        Some((Ok::<_, Infallible>(event.data(data)), flow))
    });
    let alive = KeepAlive::new().interval(ALIVE);
    // Proxies are not to collect what is meant to be seen at once.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    ([unbuffered], Sse::new(stream).keep_alive(alive)).into_response()
}

impl Flow {
    async fn next(&mut self) -> Option<Sent> {
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
                Ok(text) => {
                    self.ready.extend(self.answer.more(text));
                    if self.answer.is_complete() {
                        self.ready.extend(self.answer.end());
                        self.ended = true;
                    }
                }
                Err(problem) => {
                    self.ready.extend(self.answer.broken(&problem));
                    self.ended = true;
                    self.events.close();
                }
            }
        }
    }
}
