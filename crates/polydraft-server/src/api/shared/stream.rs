//! Answers as they are decided, step by step.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::unfold;

use super::error::{Dialect, Problem};
use crate::api::{Reply, Sent};
use crate::worker::Events;

/// A sign of life where nothing else is to be said for so long.
const ALIVE: Duration = Duration::from_secs(15);

/// Bytes of an event that takes a while to be written: not for the threads that answer.
const LARGE: usize = 1 << 18;

struct Flow {
    /// None once it is sent to its end.
    answer: Option<Box<dyn Reply>>,
    events: Events,
    /// What is to be sent before anything else happens.
    ready: VecDeque<Sent>,
}

/// The answer, as it is decided, as server-sent events or as lines of JSON. A client that reads
/// slowly holds up nobody: what it has not read yet is buffered, up to a limit.
pub fn respond(mut answer: Box<dyn Reply>, events: Events, dialect: Dialect) -> Response {
    let ready = answer.begin().into();
    let flow = Flow { answer: Some(answer), events, ready };
    let sent = unfold(flow, |mut flow| async move { Some((flow.next().await?, flow)) });
    // Proxies are not to collect what is meant to be seen at once.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    if dialect == Dialect::Ollama {
        let lines = sent.map(|sent| Ok::<_, Infallible>(sent.data + "\n"));
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        return ([unbuffered, kind], Body::from_stream(lines)).into_response();
    }
    let lines = sent.map(|Sent { name, data }| {
        let event = name.map_or_else(Line::default, |name| Line::default().event(name));
        Ok::<_, Infallible>(event.data(data))
    });
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    let mut answer = Sse::new(lines).keep_alive(KeepAlive::new().interval(ALIVE)).into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer.headers_mut().insert(unbuffered.0, unbuffered.1);
    answer
}

impl Flow {
    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            let mut answer = self.answer.take()?;
            let event = self.events.next().await.ok_or_else(Problem::internal);
            let is_large = event.as_ref().is_ok_and(|event| event.size() > LARGE);
            let take = move || {
                let more = event.and_then(|event| answer.take(event)).map(|text| answer.more(text));
                (answer, more)
            };
            let taken = match is_large {
                true => tokio::task::spawn_blocking(take).await,
                false => Ok(take()),
            };
            let Ok((mut answer, more)) = taken else {
                self.events.close();
                return Some(Sent::data(serde_json::json!(Problem::internal())));
            };
            match more {
                Ok(more) => {
                    self.ready.extend(more);
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
