//! Answers as server-sent events, step by step.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use crate::api::error::Problem;
use crate::api::{Reply, Sent};
use crate::worker::Events;

/// A sign of life where nothing else is to be said for so long.
const ALIVE: Duration = Duration::from_secs(15);

struct Flow {
    /// None once it is sent to its end.
    answer: Option<Box<dyn Reply>>,
    events: Events,
    /// What is to be sent before anything else happens.
    ready: VecDeque<Sent>,
}

/// The answer, as it is decided. A client that reads slowly holds up nobody: what it has not read
/// yet is buffered, up to a limit.
pub fn of(mut answer: Box<dyn Reply>, events: Events) -> Response {
    let ready = answer.begin().into();
    let flow = Flow { answer: Some(answer), events, ready };
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
            let mut answer = self.answer.take()?;
            let event = self.events.next().await;
            let taken = event.ok_or_else(Problem::internal).and_then(|event| answer.take(event));
            match taken {
                Ok(text) => {
                    self.ready.extend(answer.more(text));
                    if answer.is_complete() {
                        // Some routes repeat the whole answer: not for the threads that answer.
                        let end = tokio::task::spawn_blocking(move || answer.end()).await;
                        let failed = |_| vec![Sent::data(serde_json::json!(Problem::internal()))];
                        self.ready.extend(end.unwrap_or_else(failed));
                    } else {
                        self.answer = Some(answer);
                    }
                }
                Err(problem) => {
                    self.ready.extend(answer.broken(&problem));
                    self.events.close();
                }
            }
        }
    }
}
