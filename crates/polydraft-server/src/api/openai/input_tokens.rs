//! Routes that count the tokens of a prompt without decoding.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{MethodRouter, post};
use serde_json::{Value, json};

use crate::LoadedModel;
use crate::api::Prepared;
use crate::api::shared::answering::{Prepare, respond_computed, set_defaults};
use crate::api::shared::error::Dialect;
use crate::models::Models;

/// Token count of a conversation's prompt, in the form of OpenAI and llama.cpp.
fn input_tokens<A>(prepared: &Prepared<A>) -> Value {
    let tokens: usize = prepared.requests.iter().map(|params| params.prompt.len()).sum();
    json!({ "object": "response.input_tokens", "input_tokens": tokens })
}

/// Returns a route that prepares a request and counts the tokens of its prompt.
pub fn route<A: 'static>(prepare: Prepare<A>) -> MethodRouter<Arc<Models>> {
    let count = move |model: &LoadedModel, mut body| {
        set_defaults(&model.options.defaults, &mut body);
        prepare(model, body).map(|prepared| input_tokens(&prepared))
    };
    post(move |State(models), request| respond_computed(models, request, count, Dialect::OpenAi))
}
