//! Anthropic's interface, as far as it applies to text models.

mod reply;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;

use crate::api::shared::answering::{decoding_route, respond_computed};
use crate::api::shared::error::Dialect;
use crate::models::Models;

/// Routes below `/v1`.
pub fn routes() -> Router<Arc<Models>> {
    let count = |State(models): State<Arc<Models>>, headers: HeaderMap, body: Body| {
        respond_computed(models, headers, body, request::count_tokens, Dialect::Anthropic)
    };
    Router::new()
        .route("/messages", decoding_route(request::prepare, Dialect::Anthropic))
        .route("/messages/count_tokens", post(count))
}
