//! `/v1/models`: models of the server.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use polydraft::VerifierKind;
use serde_json::{Value, json};

use crate::LoadedModel;
use crate::api::shared::defaults::default_params;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::models::named_models;
use crate::models::Models;

/// Object of a model under one of its names. Most fields are known only if it is loaded.
fn model_object(name: &str, model: Option<&LoadedModel>) -> Value {
    let mut object =
        json!({ "id": name, "object": "model", "created": 0, "owned_by": "polydraft" });
    if let Some(model) = model {
        // The model's own name.
        object["root"] = model.name().into();
        object["created"] = model.started.into();
        object["max_model_len"] = model.context.into();
        object["defaults"] = json!({
            "chat": default_params(model, &model.chat),
            "completions": default_params(model, &model.completions),
        });
        object["speculation"] = json!(model.speculation.as_ref().map(|speculation| json!({
            "verifier": speculation.verifier.to_string(),
            "tree": speculation.tree.to_string(),
            "draft": model.draft,
            "verifiers": VerifierKind::all()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        })));
    }
    object
}

/// `/v1/models`
pub async fn list_models(State(models): State<Arc<Models>>) -> Json<Value> {
    let data: Vec<Value> = named_models(&models)
        .iter()
        .map(|(name, _, model)| model_object(name, model.as_deref()))
        .collect();
    Json(json!({ "object": "list", "data": data }))
}

/// `/v1/models/NAME`
pub async fn get_model(
    State(models): State<Arc<Models>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    // A name that is not valid UTF-8 matches no model.
    let name = name.map(|Path(name)| name).unwrap_or_default();
    let all = named_models(&models);
    match all.iter().find(|(known, ..)| *known == name) {
        Some((name, _, model)) => Ok(Json(model_object(name, model.as_deref()))),
        None => {
            let known_names: Vec<String> =
                all.iter().map(|(name, ..)| format!("{name:?}")).collect();
            let known_names = known_names.join(", ");
            let problem = Problem::invalid(format!("unknown model, expected one of {known_names}"));
            Err(problem
                .with_param("model")
                .with_code("model_not_found")
                .with_status(StatusCode::NOT_FOUND))
        }
    }
}
