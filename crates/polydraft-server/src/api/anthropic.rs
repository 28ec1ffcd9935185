//! Anthropic's interface, as far as it applies to text models.

mod reply;
pub mod request;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;

use crate::api::shared::answering::{decoding_route, respond_computed};
use crate::api::shared::error::Dialect;
use crate::models::Models;

/// Routes below `/v1`.
pub fn routes() -> Router<Arc<Models>> {
    let count = |State(models): State<Arc<Models>>, request: Request| {
        respond_computed(models, request, request::count_tokens, Dialect::Anthropic)
    };
    Router::new()
        .route("/messages", decoding_route(request::prepare, Dialect::Anthropic))
        .route("/messages/count_tokens", post(count))
}
