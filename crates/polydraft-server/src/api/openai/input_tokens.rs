//! Counts of a prompt's tokens, without decoding.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{MethodRouter, post};
use serde_json::{Value, json};

use crate::App;
use crate::api::Prepared;
use crate::api::shared::answering::{Prepare, compute, set_defaults};
use crate::api::shared::error::Dialect;
use crate::fleet::Fleet;

/// How many tokens the prompt of a conversation has, as both OpenAI's and llama.cpp's servers say.
fn counted<A>(prepared: &Prepared<A>) -> Value {
    let tokens: usize = prepared.requests.iter().map(|params| params.prompt.len()).sum();
    json!({ "object": "response.input_tokens", "input_tokens": tokens })
}

/// A route that says so of what `prepare` makes of a body.
pub fn counts<A: 'static>(prepare: Prepare<A>) -> MethodRouter<Arc<Fleet>> {
    let count = move |app: &App, mut body| {
        set_defaults(&app.options.defaults, &mut body);
        prepare(app, body).map(|prepared| counted(&prepared))
    };
    post(move |State(fleet), headers, body| compute(fleet, headers, body, count, Dialect::OpenAi))
}
