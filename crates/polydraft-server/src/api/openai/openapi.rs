//! The interface's description, for programs.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::chat::Chat;
use super::completions::Completion;
use super::responses::Responses;
use crate::api::shared::error::{Detail, Problem};
use crate::api::shared::messages::Spoken;
use crate::api::shared::params::{Common, StreamOptions};
use crate::api::shared::usage::{PromptDetails, Speculated, Usage};

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
        Spoken,
        Responses,
        Usage,
        PromptDetails,
        Speculated,
        Problem,
        Detail
    ))
)]
struct Components;

/// All of it: the components from the types that requests are read into, and the routes.
pub fn description() -> Value {
    let schema = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let content = |kind: &str, schema: Value| json!({ "content": { kind: { "schema": schema } } });
    let answer = |what: &str, kind: &str| {
        let mut answer = content(
            kind,
            json!({ "type": if kind == "application/json" { "object" } else { "string" } }),
        );
        answer["description"] = what.into();
        answer
    };
    let wrong = |what: &str| {
        let mut answer = content("application/json", schema("Problem"));
        answer["description"] = what.into();
        answer
    };
    let get = |what: &str, kind: &str| {
        json!({ "get": { "summary": what,
        "responses": { "200": answer(what, kind) } } })
    };
    let post = |what: &str, own: &str| {
        let mut body =
            content("application/json", json!({ "allOf": [schema("Common"), schema(own)] }));
        body["required"] = true.into();
        json!({ "post": { "summary": what, "requestBody": body, "responses": {
            "200": answer("The answer; with \"stream\", chunks as server-sent events, the last one \
             [DONE]", "application/json"),
            "400": wrong("A parameter that is wrong, unknown or not supported: it is named"),
            "401": wrong("No key, or a wrong one"),
            "404": wrong("A model that is not served"),
            "413": wrong("A body that is too large"),
            "429": wrong("The queue is full: come again after Retry-After seconds"),
            "503": wrong("The server is being stopped, or the model cannot be loaded"),
        } } })
    };
    // Whose form is described elsewhere.
    let free = |what: &str| {
        let body = content("application/json", json!({ "type": "object" }));
        json!({ "post": { "summary": what, "requestBody": body,
            "responses": { "200": answer("The answer", "application/json") } } })
    };
    let mut whole = serde_json::to_value(Components::openapi()).unwrap_or_default();
    whole["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    whole["paths"] = json!({
        "/health": get("Whether it serves; needs no key", "application/json"),
        "/metrics": get("Counters and times, for Prometheus", "text/plain"),
        "/v1/models": get("The models that are served", "application/json"),
        "/v1/completions": post("Continuations of prompts", "Completion"),
        "/v1/chat/completions": post("Answers to conversations", "Chat"),
        "/v1/chat/completions/input_tokens": free("How many tokens a conversation's prompt has"),
        "/v1/responses/input_tokens": free("The same, of a response's input"),
        "/v1/responses": post("Answers to conversations, in the newer form", "Responses"),
        "/v1/messages": free("Anthropic's interface"),
        "/v1/messages/count_tokens": free("How many tokens a message's prompt has"),
        "/api/chat": free("Ollama's conversations"),
        "/api/generate": free("Ollama's completions"),
        "/api/show": free("What Ollama says of a model"),
        "/api/tags": get("Ollama's list of models", "application/json"),
        "/completion": free("Completions in llama.cpp's own form"),
        "/tokenize": free("The tokens of a text or a conversation"),
        "/detokenize": free("The text of tokens"),
        "/apply-template": free("A conversation as the model reads it"),
        "/tokenizer_info": get("What kind of tokenizer the first model has", "application/json"),
        "/props": get("What llama.cpp's server says of itself", "application/json"),
        "/version": get("The program's version", "application/json"),
    });
    whole["components"]["securitySchemes"] =
        json!({ "key": { "type": "http", "scheme": "bearer" } });
    whole["security"] = json!([{ "key": [] }]);
    whole
}
