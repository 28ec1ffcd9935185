//! Routes of text and tokens alone: tokenizing, templates, counts. Nothing is decoded.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use serde_json::{Value, json};

use super::answering::{Prepare, blocking, read, set_defaults};
use crate::App;
use crate::api::error::{Dialect, Problem};
use crate::api::{Json, Prepared, anthropic, texts};
use crate::fleet::Fleet;

async fn answer(
    fleet: Arc<Fleet>,
    headers: HeaderMap,
    body: Body,
    work: impl FnOnce(&App, Value) -> Result<Value, Problem> + Send + 'static,
    dialect: Dialect,
) -> Response {
    let answered = async {
        let (app, body) = read(&fleet, &headers, body).await?;
        blocking(move || work(&app, body)).await
    };
    match answered.await {
        Ok(value) => Json(value).into_response(),
        Err(problem) => problem.response(dialect),
    }
}

/// How many tokens the prompt of a message has.
pub async fn count_tokens(
    State(fleet): State<Arc<Fleet>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(fleet, headers, body, anthropic::count, Dialect::Anthropic).await
}

/// How many tokens the prompt of a conversation has, as both OpenAI's and llama.cpp's servers say.
fn counted(prepared: Prepared) -> Value {
    let tokens: usize = prepared.asked.iter().map(|asked| asked.prompt.len()).sum();
    json!({ "object": "response.input_tokens", "input_tokens": tokens })
}

/// A route that says so of what `prepare` makes of a body.
pub fn counts(prepare: Prepare) -> MethodRouter<Arc<Fleet>> {
    let count = move |app: &App, mut body| {
        set_defaults(&app.settings.defaults, &mut body);
        prepare(app, body).map(counted)
    };
    post(move |State(fleet), headers, body| answer(fleet, headers, body, count, Dialect::OpenAi))
}

/// The tokens of a text or a conversation.
pub async fn tokenize(State(fleet): State<Arc<Fleet>>, headers: HeaderMap, body: Body) -> Response {
    answer(fleet, headers, body, texts::tokenize, Dialect::OpenAi).await
}

/// The text of tokens.
pub async fn detokenize(
    State(fleet): State<Arc<Fleet>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(fleet, headers, body, texts::detokenize, Dialect::OpenAi).await
}

/// A conversation as the model reads it.
pub async fn apply_template(
    State(fleet): State<Arc<Fleet>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(fleet, headers, body, texts::apply_template, Dialect::OpenAi).await
}

/// What kind of tokenizer the first model has.
pub async fn tokenizer_info(State(fleet): State<Arc<Fleet>>) -> Result<Json<Value>, Problem> {
    let app = fleet.find(None).await?;
    let (tokenizer, chat) = (&app.language.tokenizer, app.language.chat.as_ref());
    Ok(Json(json!({
        "tokenizer_class": tokenizer.kind(),
        "vocab_size": app.vocabulary,
        "model_max_length": app.context,
        "eos_token": chat.and_then(|template| template.end_token()),
        "eos_token_ids": app.language.end_tokens,
        "chat_template": chat.map(|template| template.source()),
    })))
}
