//! `/v1/models`: the models that are served.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use polydraft::VerifierKind;
use serde_json::{Value, json};

use crate::App;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::models::named;
use crate::fleet::Fleet;

/// One of a model's names; what is known of the model, if it is loaded.
fn described(name: &str, app: Option<&App>) -> Value {
    let mut model = json!({ "id": name, "object": "model", "created": 0, "owned_by": "polydraft" });
    if let Some(app) = app {
        // Of which model it is a name.
        model["root"] = app.name().into();
        model["created"] = app.started.into();
        model["max_model_len"] = app.context.into();
        model["speculation"] = json!(app.speculation.as_ref().map(|speculation| json!({
            "verifier": speculation.verifier.to_string(),
            "tree": speculation.tree.to_string(),
            "draft": app.draft,
            "verifiers": VerifierKind::all()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        })));
    }
    model
}

/// `/v1/models`
pub async fn list(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    let data: Vec<Value> =
        named(&fleet).iter().map(|(name, _, app)| described(name, app.as_deref())).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// `/v1/models/NAME`
pub async fn one(
    State(fleet): State<Arc<Fleet>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    // What is no text names no model.
    let name = name.map(|Path(name)| name).unwrap_or_default();
    let all = named(&fleet);
    match all.iter().find(|(known, ..)| *known == name) {
        Some((name, _, app)) => Ok(Json(described(name, app.as_deref()))),
        None => {
            let here: Vec<String> = all.iter().map(|(name, ..)| format!("{name:?}")).collect();
            let here = here.join(", ");
            let problem = Problem::invalid(format!("there is no such model here, only {here}"));
            Err(problem.of("model").code("model_not_found").status(StatusCode::NOT_FOUND))
        }
    }
}
