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

use crate::api::shared::answering::decodes;
use crate::api::shared::error::Dialect;
use crate::fleet::Fleet;

/// The routes below `/v1`.
pub fn routes() -> Router<Arc<Fleet>> {
    Router::new()
        .route("/models", get(models::list))
        .route("/models/{*name}", get(models::one))
        .route("/completions", decodes(completions::prepare, Dialect::OpenAi))
        .route("/chat/completions", decodes(chat::prepare, Dialect::OpenAi))
        .route("/chat/completions/input_tokens", input_tokens::counts(chat::prepare))
        .route("/responses/input_tokens", input_tokens::counts(responses::prepare))
        .route("/responses", decodes(responses::prepare, Dialect::OpenAi))
        .route("/responses/{id}", get(responses::stored).delete(responses::forget))
}
