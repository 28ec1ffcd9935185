//! Ollama's interface, and what front ends ask of it besides.

mod models;
mod reply;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::api::shared::answering::decodes;
use crate::api::shared::error::Dialect;
use crate::fleet::Fleet;

/// The routes.
pub fn routes() -> Router<Arc<Fleet>> {
    Router::new()
        .route("/api/chat", decodes(request::prepare_chat, Dialect::Ollama))
        .route("/api/generate", decodes(request::prepare_generate, Dialect::Ollama))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::running))
        .route("/api/show", post(models::show))
}
