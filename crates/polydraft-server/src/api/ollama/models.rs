//! Lists and descriptions of models, as in Ollama.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::reply::time;
use crate::LoadedModel;
use crate::api::shared::answering::read_request;
use crate::api::shared::error::Dialect;
use crate::api::shared::json::Json;
use crate::api::shared::models::named_models;
use crate::models::{Models, Status};

/// `/api/tags`
pub async fn tags(State(models): State<Arc<Models>>) -> Json<Value> {
    let listed = named_models(&models);
    let tags = listed.iter().map(|(name, _, model)| list_entry(name, model.as_deref()));
    Json(json!({ "models": tags.collect::<Vec<_>>() }))
}

/// `/api/ps`
pub async fn ps(State(models): State<Arc<Models>>) -> Json<Value> {
    let listed = named_models(&models);
    let loaded = listed.iter().filter(|(_, status, _)| *status == Status::Loaded);
    let tags = loaded.map(|(name, _, model)| list_entry(name, model.as_deref()));
    Json(json!({ "models": tags.collect::<Vec<_>>() }))
}

/// `/api/show`
pub async fn show(State(models): State<Arc<Models>>, request: Request) -> Response {
    match read_request(&models, request).await {
        Ok((model, _)) => Json(description(&model)).into_response(),
        Err(problem) => problem.response(Dialect::Ollama),
    }
}

/// Entry of a model in a list; `model` if it is loaded.
fn list_entry(name: &str, model: Option<&LoadedModel>) -> Value {
    let details = json!({ "parent_model": "", "format": "polydraft", "family": "", "families": [],
        "parameter_size": "", "quantization_level": "" });
    let created = model.map_or(0, |model| model.started);
    json!({ "name": name, "model": name, "modified_at": time(created), "size": 0,
        "digest": "", "details": details })
}

/// Description of a model.
fn description(model: &LoadedModel) -> Value {
    let template = model.language.chat.as_ref();
    let mut capabilities = vec!["completion"];
    let output = model.output_form();
    if output.calls.is_some() {
        capabilities.push("tools");
    }
    if output.reasoning.has_reasoning() {
        capabilities.push("thinking");
    }
    json!({ "modelfile": "", "parameters": "", "license": "",
        "template": template.map_or("", |template| template.source()),
        "details": list_entry(model.name(), Some(model))["details"],
        "model_info": { "general.architecture": "polydraft",
            "polydraft.context_length": model.context,
            "polydraft.vocab_size": model.vocabulary },
        "capabilities": capabilities, "modified_at": time(model.started) })
}
