//! `/v1/responses/ID`: stored answers.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::models::Models;

fn not_stored(id: &str) -> Problem {
    let problem = Problem::invalid(format_args!("no stored answer {id:?}"));
    problem.with_param("response_id").with_status(StatusCode::NOT_FOUND)
}

/// Returns a stored answer.
pub async fn get_stored(
    State(models): State<Arc<Models>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let mut loaded = models.all().filter_map(|(_, _, model)| model);
    let stored = loaded.find_map(|model| model.stored_responses.get(&id));
    stored.map(|stored| Json(stored.object)).ok_or_else(|| not_stored(&id))
}

/// Deletes a stored answer.
pub async fn delete_stored(
    State(models): State<Arc<Models>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let mut loaded = models.all().filter_map(|(_, _, model)| model);
    match loaded.any(|model| model.stored_responses.remove(&id)) {
        true => Ok(Json(json!({ "id": id, "object": "response.deleted", "deleted": true }))),
        false => Err(not_stored(&id)),
    }
}
