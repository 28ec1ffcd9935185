//! OpenAI's interface.

pub mod chat;
pub mod completions;
mod input_tokens;
mod models;
pub mod openapi;
pub mod responses;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::api::shared::answering::decoding_route;
use crate::api::shared::error::Dialect;
use crate::models::Models;

/// Routes below `/v1`.
pub fn routes() -> Router<Arc<Models>> {
    Router::new()
        .route("/models", get(models::list_models))
        .route("/models/{*name}", get(models::get_model))
        .route("/completions", decoding_route(completions::prepare, Dialect::OpenAi))
        .route("/chat/completions", decoding_route(chat::prepare, Dialect::OpenAi))
        .route("/chat/completions/input_tokens", input_tokens::route(chat::prepare))
        .route("/responses/input_tokens", input_tokens::route(responses::prepare))
        .route("/responses", decoding_route(responses::prepare, Dialect::OpenAi))
        .route("/responses/{id}", get(responses::get_stored).delete(responses::delete_stored))
}
