//! Descriptions of the server and the first model, as llama.cpp's and vLLM's servers have them.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::fleet::Fleet;

/// Properties of the server, as llama.cpp's has them.
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
        "seed": app.options.defaults.get("seed").cloned().unwrap_or_else(|| json!(-1)) });
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

/// The kind of the first model's tokenizer.
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
