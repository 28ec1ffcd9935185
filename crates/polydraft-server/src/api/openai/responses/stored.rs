//! `/v1/responses/ID`: answers that are stored.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::fleet::Fleet;

fn not_stored(id: &str) -> Problem {
    let problem = Problem::invalid(format_args!("there is no answer {id:?} here, or no longer"));
    problem.of("response_id").status(StatusCode::NOT_FOUND)
}

/// A stored answer.
pub async fn stored(
    State(fleet): State<Arc<Fleet>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let mut loaded = fleet.all().filter_map(|(_, _, app)| app);
    let stored = loaded.find_map(|app| app.stored.get(&id));
    stored.map(|stored| Json(stored.object)).ok_or_else(|| not_stored(&id))
}

/// Drops a stored answer.
pub async fn forget(
    State(fleet): State<Arc<Fleet>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let mut loaded = fleet.all().filter_map(|(_, _, app)| app);
    match loaded.any(|app| app.stored.remove(&id)) {
        true => Ok(Json(json!({ "id": id, "object": "response.deleted", "deleted": true }))),
        false => Err(not_stored(&id)),
    }
}
