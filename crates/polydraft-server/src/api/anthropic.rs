//! Anthropic's interface, as far as a text model has it.

mod reply;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;

use crate::api::shared::answering::{compute, decodes};
use crate::api::shared::error::Dialect;
use crate::fleet::Fleet;

/// The routes below `/v1`.
pub fn routes() -> Router<Arc<Fleet>> {
    let count = |State(fleet): State<Arc<Fleet>>, headers: HeaderMap, body: Body| {
        compute(fleet, headers, body, request::count, Dialect::Anthropic)
    };
    Router::new()
        .route("/messages", decodes(request::prepare, Dialect::Anthropic))
        .route("/messages/count_tokens", post(count))
}
