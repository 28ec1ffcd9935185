//! llama.cpp's own routes, and vLLM's of the same kind.

mod completion;
mod props;
mod reply;
mod samplers;
mod tokenize;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::{MethodRouter, get, post};
use serde_json::Value;

use crate::App;
use crate::api::shared::answering::{compute, decodes};
use crate::api::shared::error::{Dialect, Problem};
use crate::fleet::Fleet;

/// The routes.
pub fn routes() -> Router<Arc<Fleet>> {
    Router::new()
        .route("/completion", decodes(completion::prepare, Dialect::OpenAi))
        .route("/tokenize", computes(tokenize::tokenize))
        .route("/detokenize", computes(tokenize::detokenize))
        .route("/apply-template", computes(tokenize::apply_template))
        .route("/tokenizer_info", get(props::tokenizer_info))
        .route("/props", get(props::props))
}

/// A route that decodes nothing.
fn computes(work: fn(&App, Value) -> Result<Value, Problem>) -> MethodRouter<Arc<Fleet>> {
    post(move |State(fleet): State<Arc<Fleet>>, headers: HeaderMap, body: Body| {
        compute(fleet, headers, body, work, Dialect::OpenAi)
    })
}
