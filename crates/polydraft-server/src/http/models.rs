//! What the server says of its models, and of answers that it stores.

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use polydraft::VerifierKind;
use serde_json::{Value, json};

use super::answering::read;
use crate::App;
use crate::api::error::{Dialect, Problem};
use crate::api::{Json, ollama};
use crate::fleet::{Fleet, Status};

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

/// Every name that a client may say, and the model, if it is loaded.
fn named(fleet: &Fleet) -> Vec<(String, Status, Option<Arc<App>>)> {
    let of = |(names, status, app): (&[String], Status, Option<Arc<App>>)| {
        let own = app.as_ref().map_or("", |app| app.name());
        let names =
            names.iter().map(|name| if name == "*" { own.to_owned() } else { name.clone() });
        let mut names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        // '*' beside a name of its own says nothing further.
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names.into_iter().map(move |name| (name, status, app.clone())).collect::<Vec<_>>()
    };
    fleet.all().flat_map(of).collect()
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

/// Ollama's list of models.
pub async fn tags(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    let models = named(&fleet);
    let tags = models.iter().map(|(name, _, app)| ollama::tag(name, app.as_deref()));
    Json(json!({ "models": tags.collect::<Vec<_>>() }))
}

/// Ollama's list of models that are loaded.
pub async fn running(State(fleet): State<Arc<Fleet>>) -> Json<Value> {
    let models = named(&fleet);
    let loaded = models.iter().filter(|(_, status, _)| *status == Status::Loaded);
    let tags = loaded.map(|(name, _, app)| ollama::tag(name, app.as_deref()));
    Json(json!({ "models": tags.collect::<Vec<_>>() }))
}

/// What Ollama says of one model.
pub async fn show(State(fleet): State<Arc<Fleet>>, headers: HeaderMap, body: Body) -> Response {
    match read(&fleet, &headers, body).await {
        Ok((app, _)) => Json(ollama::show(&app)).into_response(),
        Err(problem) => problem.response(Dialect::Ollama),
    }
}

/// What llama.cpp's server says of itself.
pub async fn props(State(fleet): State<Arc<Fleet>>) -> Result<Json<Value>, Problem> {
    let app = fleet.find(None).await?;
    let chat = app.language.chat.as_ref();
    // The file's name, which says the format; where it lies is nobody's affair.
    let path = app.language.tokenizer.path();
    let file = path.file_name().filter(|_| path.extension().is_some_and(|kind| kind == "gguf"));
    let file = file.map_or_else(|| app.name().into(), std::ffi::OsStr::to_string_lossy);
    let sampling = app.chat.sampling.target();
    let params = json!({ "temperature": sampling.temperature, "top_k": sampling.top_k.unwrap_or(0),
        "top_p": sampling.top_p, "min_p": sampling.min_p, "n_predict": app.chat.max_tokens,
        // Where it is not given each request has its own, as llama.cpp's −1 is.
        "seed": app.settings.defaults.get("seed").cloned().unwrap_or_else(|| json!(-1)) });
    Ok(Json(json!({
        "default_generation_settings": { "n_ctx": app.context, "params": params },
        "total_slots": app.limits.texts,
        "model_alias": app.name(),
        "model_path": file,
        "chat_template": chat.map_or("", |template| template.source()),
        "eos_token": chat.and_then(|template| template.end_token()),
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("polydraft ", env!("CARGO_PKG_VERSION")),
    })))
}

fn not_stored(id: &str) -> Problem {
    let problem = Problem::invalid(format_args!("there is no answer {id:?} here, or no longer"));
    problem.of("response_id").status(StatusCode::NOT_FOUND)
}

/// A stored answer.
pub async fn response(
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
