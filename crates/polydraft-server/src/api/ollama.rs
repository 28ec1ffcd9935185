//! Ollama's interface, and the further routes that its front ends use.

mod load;
mod models;
mod reply;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::api::shared::answering::decoding_route_unless;
use crate::api::shared::error::Dialect;
use crate::models::Models;

/// All routes.
pub fn routes() -> Router<Arc<Models>> {
    Router::new()
        .route(
            "/api/chat",
            decoding_route_unless(load::chat, request::prepare_chat, Dialect::Ollama),
        )
        .route(
            "/api/generate",
            decoding_route_unless(load::generate, request::prepare_generate, Dialect::Ollama),
        )
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
}
