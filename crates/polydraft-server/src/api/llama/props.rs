//! Descriptions of the server and the first model, in the form of llama.cpp and vLLM.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use crate::api::shared::defaults::default_params;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::models::Models;

/// `/props`: properties of the server, as in llama.cpp.
pub async fn props(State(models): State<Arc<Models>>) -> Result<Json<Value>, Problem> {
    let model = models.get_or_load(None).await?;
    let chat = model.language.chat.as_ref();
    // The file name only, which shows the format: do not reveal the directory.
    let path = model.language.tokenizer.path();
    let file_name =
        path.file_name().filter(|_| path.extension().is_some_and(|kind| kind == "gguf"));
    let file_name = file_name.map_or_else(|| model.name().into(), std::ffi::OsStr::to_string_lossy);
    let defaults = default_params(&model, &model.chat);
    let params = json!({ "temperature": defaults["temperature"], "top_k": defaults["top_k"],
        "top_p": defaults["top_p"], "min_p": defaults["min_p"], "n_predict": defaults["max_tokens"],
        // -1, as in llama.cpp, is a new seed for each request.
        "seed": model.options.defaults.get("seed").cloned().unwrap_or_else(|| json!(-1)) });
    Ok(Json(json!({
        "default_generation_settings": { "n_ctx": model.context, "params": params },
        "total_slots": model.limits.sequences,
        "model_alias": model.name(),
        "model_path": file_name,
        "chat_template": chat.map_or("", |template| template.source()),
        "eos_token": chat.and_then(|template| template.end_token()),
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("polydraft ", env!("CARGO_PKG_VERSION")),
    })))
}

/// `/tokenizer_info`: kind of the first model's tokenizer.
pub async fn tokenizer_info(State(models): State<Arc<Models>>) -> Result<Json<Value>, Problem> {
    let model = models.get_or_load(None).await?;
    let (tokenizer, chat) = (&model.language.tokenizer, model.language.chat.as_ref());
    Ok(Json(json!({
        "tokenizer_class": tokenizer.kind(),
        "vocab_size": model.vocabulary,
        "model_max_length": model.context,
        "eos_token": chat.and_then(|template| template.end_token()),
        "eos_token_ids": model.language.end_tokens,
        "chat_template": chat.map(|template| template.source()),
    })))
}
