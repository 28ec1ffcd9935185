//! Streamed answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event as Line, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use futures_util::stream::unfold;

use super::error::{Dialect, Problem};
use crate::api::{Reply, StreamEvent};
use crate::request_log::RequestLog;
use crate::worker::Events;

/// Interval of keep-alive messages.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Size in bytes from which an event is serialized on a blocking thread.
const LARGE_EVENT: usize = 1 << 18;

struct AnswerStream {
    /// `None` once the end is sent or queued.
    answer: Option<Box<dyn Reply>>,
    events: Events,
    /// Events to send next.
    ready: VecDeque<StreamEvent>,
    log: Option<Arc<RequestLog>>,
}

/// Streams an answer as server-sent events or lines of JSON. A slow client does not block others:
/// unread data is buffered up to a limit.
pub fn respond(
    mut answer: Box<dyn Reply>,
    events: Events,
    log: Option<Arc<RequestLog>>,
    dialect: Dialect,
) -> Response {
    let ready = answer.stream_start().into();
    let stream = AnswerStream { answer: Some(answer), events, ready, log };
    let sent = unfold(stream, |mut stream| async move { Some((stream.next().await?, stream)) });
    // Proxies must not buffer a stream.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    if dialect == Dialect::Ollama {
        let lines = sent.map(|sent| Ok::<_, Infallible>(sent.data + "\n"));
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        return ([unbuffered, kind], Body::from_stream(lines)).into_response();
    }
    let lines = sent.map(|StreamEvent { name, data }| {
        let event = name.map_or_else(Line::default, |name| Line::default().event(name));
        Ok::<_, Infallible>(event.data(data))
    });
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    let mut answer =
        Sse::new(lines).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer.headers_mut().insert(unbuffered.0, unbuffered.1);
    answer
}

impl AnswerStream {
    async fn next(&mut self) -> Option<StreamEvent> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            let mut answer = self.answer.take()?;
            let event = self.events.next().await.ok_or_else(Problem::internal);
            let is_large = event.as_ref().is_ok_and(|event| event.size() > LARGE_EVENT);
            let take = move || {
                let more = event
                    .and_then(|event| answer.apply(event))
                    .map(|sequence| answer.stream_events(sequence));
                (answer, more)
            };
            let taken = match is_large {
                true => tokio::task::spawn_blocking(take).await,
                false => Ok(take()),
            };
            let Ok((mut answer, more)) = taken else {
                self.events.close();
                return Some(StreamEvent::unnamed(serde_json::json!(Problem::internal())));
            };
            match more {
                Ok(more) => {
                    self.ready.extend(more);
                    if answer.is_complete() {
                        // Some routes repeat the full answer at the end: serialize it on a blocking
                        // thread.
                        let end = tokio::task::spawn_blocking(move || answer.stream_end()).await;
                        let failed =
                            |_| vec![StreamEvent::unnamed(serde_json::json!(Problem::internal()))];
                        self.ready.extend(end.unwrap_or_else(failed));
                    } else {
                        self.answer = Some(answer);
                    }
                }
                Err(problem) => {
                    if let Some(log) = &self.log {
                        log.set_reason(&problem.located_message());
                    }
                    self.ready.extend(answer.stream_error(&problem));
                    self.events.close();
                }
            }
        }
    }
}
