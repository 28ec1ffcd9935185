//! Lists and descriptions of models, as Ollama has them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::reply::time;
use crate::App;
use crate::api::shared::answering::read;
use crate::api::shared::error::Dialect;
use crate::api::shared::json::Json;
use crate::api::shared::models::named;
use crate::fleet::{Fleet, Status};

/// `/api/tags`
pub async fn tags(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    let models = named(&fleet);
    let tags = models.iter().map(|(name, _, app)| tag(name, app.as_deref()));
    Json(json!({ "models": tags.collect::<Vec<_>>() }))
}

/// `/api/ps`
pub async fn running(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    let models = named(&fleet);
    let loaded = models.iter().filter(|(_, status, _)| *status == Status::Loaded);
    let tags = loaded.map(|(name, _, app)| tag(name, app.as_deref()));
    Json(json!({ "models": tags.collect::<Vec<_>>() }))
}

/// `/api/show`
pub async fn show(State(fleet): State<Arc<Fleet>>, headers: HeaderMap, body: Body) -> Response {
    match read(&fleet, &headers, body).await {
        Ok((app, _)) => Json(description(&app)).into_response(),
        Err(problem) => problem.response(Dialect::Ollama),
    }
}

/// The entry of a model of this name in a list; the model, where it is loaded.
fn tag(name: &str, app: Option<&App>) -> Value {
    let details = json!({ "parent_model": "", "format": "polydraft", "family": "", "families": [],
        "parameter_size": "", "quantization_level": "" });
    let created = app.map_or(0, |app| app.started);
    json!({ "name": name, "model": name, "modified_at": time(created), "size": 0,
        "digest": "", "details": details })
}

/// The description of a model.
fn description(app: &App) -> Value {
    let template = app.language.chat.as_ref();
    let mut capabilities = vec!["completion"];
    if template.is_some_and(|template| template.calls().is_some()) {
        capabilities.push("tools");
    }
    if template.is_some_and(|template| template.reasoning().is_some()) {
        capabilities.push("thinking");
    }
    json!({ "modelfile": "", "parameters": "", "license": "",
        "template": template.map_or("", |template| template.source()),
        "details": tag(app.name(), Some(app))["details"],
        "model_info": { "general.architecture": "polydraft",
            "polydraft.context_length": app.context,
            "polydraft.vocab_size": app.vocabulary },
        "capabilities": capabilities, "modified_at": time(app.started) })
}
