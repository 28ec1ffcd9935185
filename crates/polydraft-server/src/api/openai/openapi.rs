//! OpenAPI description of the interface.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::chat::Chat;
use super::completions::Completion;
use super::responses::Responses;
use crate::api::shared::error::{Detail, Problem};
use crate::api::shared::messages::ChatMessage;
use crate::api::shared::params::{Common, StreamOptions};
use crate::api::shared::usage::{PromptDetails, SpeculationCounts, Usage};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "polydraft",
        description = "Lossless speculative decoding with OpenAI's interface."
    ),
    components(schemas(
        Common,
        StreamOptions,
        Completion,
        Chat,
        ChatMessage,
        Responses,
        Usage,
        PromptDetails,
        SpeculationCounts,
        Problem,
        Detail
    ))
)]
struct Components;

/// Returns the description: components from the request types, and the routes.
pub fn description() -> Value {
    let schema = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let content = |kind: &str, schema: Value| json!({ "content": { kind: { "schema": schema } } });
    let answer = |description: &str, kind: &str| {
        let mut answer = content(
            kind,
            json!({ "type": if kind == "application/json" { "object" } else { "string" } }),
        );
        answer["description"] = description.into();
        answer
    };
    let error = |description: &str| {
        let mut answer = content("application/json", schema("Problem"));
        answer["description"] = description.into();
        answer
    };
    let get = |summary: &str, kind: &str| {
        json!({ "get": { "summary": summary,
        "responses": { "200": answer(summary, kind) } } })
    };
    let post = |summary: &str, schema_name: &str| {
        let mut body = content(
            "application/json",
            json!({ "allOf": [schema("Common"), schema(schema_name)] }),
        );
        body["required"] = true.into();
        json!({ "post": { "summary": summary, "requestBody": body, "responses": {
            "200": answer("The answer; with \"stream\", chunks as server-sent events, the last one \
             [DONE]", "application/json"),
            "400": error("A parameter that is invalid, unknown or not supported; param names it"),
            "401": error("The API key is missing or wrong"),
            "404": error("Unknown model"),
            "413": error("The body is too large"),
            "429": error("The queue is full: retry after Retry-After seconds"),
            "503": error("The server is stopping, or the model cannot be loaded"),
        } } })
    };
    // Routes whose bodies are described by other protocols.
    let post_any = |summary: &str| {
        let body = content("application/json", json!({ "type": "object" }));
        json!({ "post": { "summary": summary, "requestBody": body,
            "responses": { "200": answer("The answer", "application/json") } } })
    };
    let mut draft = post_any("Distributions along probable continuations, for remote drafts");
    draft["get"] =
        get("The first model and the fingerprint of its tokens", "application/json")["get"].take();
    let mut document = serde_json::to_value(Components::openapi()).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["paths"] = json!({
        "/health": get("Status of the server; needs no key", "application/json"),
        "/metrics": get("Metrics for Prometheus", "text/plain"),
        "/v1/models": get("Models of the server", "application/json"),
        "/v1/completions": post("Continuations of prompts", "Completion"),
        "/v1/chat/completions": post("Answers to conversations", "Chat"),
        "/v1/chat/completions/input_tokens": post_any("Token count of a conversation's prompt"),
        "/v1/responses/input_tokens": post_any("Token count of a response's input"),
        "/v1/responses": post("Answers to conversations, in OpenAI's newer form", "Responses"),
        "/v1/messages": post_any("Anthropic's interface"),
        "/v1/messages/count_tokens": post_any("Token count of a message's prompt"),
        "/v1/draft": draft,
        "/api/chat": post_any("Ollama's conversations"),
        "/api/generate": post_any("Ollama's completions"),
        "/api/show": post_any("Ollama's description of a model"),
        "/api/tags": get("Ollama's list of models", "application/json"),
        "/completion": post_any("Completions in llama.cpp's own form"),
        "/tokenize": post_any("The tokens of a text or a conversation"),
        "/detokenize": post_any("The text of tokens"),
        "/apply-template": post_any("A conversation as the model reads it"),
        "/tokenizer_info": get("Kind of the first model's tokenizer", "application/json"),
        "/props": get("Properties of the server, in llama.cpp's form", "application/json"),
        "/version": get("The program's version", "application/json"),
    });
    document["components"]["securitySchemes"] =
        json!({ "key": { "type": "http", "scheme": "bearer" } });
    document["security"] = json!([{ "key": [] }]);
    document
}
