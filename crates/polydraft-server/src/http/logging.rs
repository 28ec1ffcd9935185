//! Middleware that logs each request when its answer has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use log::Level;

use crate::api::shared::error::Reason;
use crate::models::Models;
use crate::request_log::{ID_HEADER, RequestLog, client_id};

/// Logs a request, and returns its id in a header. Routes that are polled are logged as details.
pub async fn log_request(
    State(models): State<Arc<Models>>,
    mut request: Request,
    next: Next,
) -> Response {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let id = client_id(request.headers()).map_or_else(
        || {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            format!("{:x}-{number}", models.metrics().started())
        },
        str::to_owned,
    );
    let level = if request.method() == Method::POST { Level::Info } else { Level::Debug };
    let log = RequestLog::new(id, request.method().as_str(), request.uri(), level);
    request.extensions_mut().insert(log.clone());
    let request_method = request.method().clone();
    let mut response = next.run(request).await;
    log.set_status(response.status());
    if let Some(Reason(reason)) = response.extensions_mut().remove() {
        log.set_reason(&reason);
    }
    if let Ok(id) = HeaderValue::from_str(log.id()) {
        response.headers_mut().insert(ID_HEADER, id);
    }
    // Bodies of answers to HEAD are not sent.
    if request_method == Method::HEAD || response.body().is_end_stream() {
        log.set_answered();
    }
    response.map(|body| Body::new(LoggedBody { body, log }))
}

/// Body of an answer, which records in the log that it was sent to its end.
struct LoggedBody {
    body: Body,
    log: Arc<RequestLog>,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // A body of known length is not polled after its last frame.
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.log.set_answered();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
