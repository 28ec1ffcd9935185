//! Routes of llama.cpp's own interface, and similar ones of vLLM.

pub mod completion;
mod props;
mod reply;
mod samplers;
mod tokenize;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::{MethodRouter, get, post};
use serde_json::Value;

use crate::LoadedModel;
use crate::api::shared::answering::{decoding_route, respond_computed};
use crate::api::shared::error::{Dialect, Problem};
use crate::models::Models;

/// All routes.
pub fn routes() -> Router<Arc<Models>> {
    Router::new()
        .route("/completion", decoding_route(completion::prepare, Dialect::OpenAi))
        .route("/tokenize", computed_route(tokenize::tokenize))
        .route("/detokenize", computed_route(tokenize::detokenize))
        .route("/apply-template", computed_route(tokenize::apply_template))
        .route("/tokenizer_info", get(props::tokenizer_info))
        .route("/props", get(props::props))
}

/// Returns a route that computes its answer without decoding.
fn computed_route(
    work: fn(&LoadedModel, Value) -> Result<Value, Problem>,
) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| {
        respond_computed(models, request, work, Dialect::OpenAi)
    })
}
