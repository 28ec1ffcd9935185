//! Requests without a prompt, with which clients load or unload a model. It is loaded when the
//! request arrives, and stays loaded as long as the server's settings say, or is unloaded when no
//! request uses it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::reply::time;
use crate::LoadedModel;
use crate::api::shared::answering::Direct;

/// Answer to a request of `/api/generate` without a prompt.
pub fn generate(model: &LoadedModel, body: &Value) -> Option<Direct> {
    let is_empty = |name: &str| match body.get(name) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty),
    };
    let mut answer = ["prompt", "images", "suffix"]
        .iter()
        .all(|name| is_empty(name))
        .then(|| done(model, body))?;
    answer.body["response"] = "".into();
    Some(answer)
}

/// Answer to a request of `/api/chat` without messages.
pub fn chat(model: &LoadedModel, body: &Value) -> Option<Direct> {
    let is_empty = match body.get("messages") {
        None | Some(Value::Null) => true,
        Some(messages) => messages.as_array().is_some_and(Vec::is_empty),
    };
    let mut answer = is_empty.then(|| done(model, body))?;
    answer.body["message"] = json!({ "role": "assistant", "content": "" });
    Some(answer)
}

fn done(model: &LoadedModel, body: &Value) -> Direct {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let name = body.get("model").and_then(Value::as_str).unwrap_or(model.name());
    let unloads = match body.get("keep_alive") {
        Some(Value::Number(seconds)) => seconds.as_f64() == Some(0.0),
        Some(Value::String(time)) => matches!(time.as_str(), "0" | "0s" | "0m"),
        _ => false,
    };
    let reason = if unloads { "unload" } else { "load" };
    let body =
        json!({ "model": name, "created_at": time(now), "done": true, "done_reason": reason });
    Direct { body, unloads }
}
