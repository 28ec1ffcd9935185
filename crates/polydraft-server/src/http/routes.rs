//! All routes of the server.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use serde_json::{Value, json};

use super::{guard, logging, pages};
use crate::api::openai::openapi;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::{anthropic, draft, llama, ollama, openai};
use crate::models::{Models, Status};

/// Returns the router.
pub fn router(models: Arc<Models>) -> Router {
    // Also serve clients whose base URL lacks /v1.
    let v1 = openai::routes().merge(anthropic::routes()).merge(draft::routes());
    let guarded = Router::new()
        .nest("/v1", v1.clone())
        .merge(v1)
        .merge(ollama::routes())
        .merge(llama::routes())
        .route("/api/version", get(ollama_version))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { Json(openapi::description()) }))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(models.clone(), guard::require_key))
        .layer(from_fn_with_state(models.clone(), guard::check_origin))
        .layer(from_fn(catch_panics))
        .layer(from_fn_with_state(models.clone(), logging::log_request));
    // Pages hold no secrets; the requests that they send need the key.
    let open = Router::new().route("/health", get(health)).merge(pages::routes());
    let open = open.method_not_allowed_fallback(method_not_allowed).layer(from_fn(catch_panics));
    let routes = guarded.merge(open);
    let root = models.options().path_prefix.clone();
    let all = match guard::cors(&models.options().allowed_origins) {
        Some(layer) => routes.layer(layer).layer(map_response(guard::list_methods)),
        None => routes,
    };
    let all: Router = all.with_state(models);
    if root.is_empty() { all } else { Router::new().nest(&root, all.clone()).merge(all) }
}

/// Middleware that answers requests whose handlers panic.
async fn catch_panics(request: Request, next: Next) -> Response {
    // The handler is dropped unfinished, and its state is not used again.
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answer.unwrap_or_else(|_| Problem::internal().into_response())
}

/// Reports the status of the first model; further models are loaded on request.
async fn health(State(models): State<Arc<Models>>) -> Response {
    let first = models.all().map(|(_, status, _)| status).next();
    let loaded = models.all().any(|(_, status, _)| status == Status::Loaded);
    let status = match first {
        _ if polydraft_runtime::has_ended() => "failed",
        Some(Status::Stopping) => "stopping",
        Some(Status::Loading) if !loaded => "loading model",
        _ => return Json(json!({ "status": "ok" })).into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": status }))).into_response()
}

/// Version of Ollama whose interface is offered: clients ask for a minimum.
const OLLAMA_VERSION: &str = "0.12.6";

async fn ollama_version() -> Json<Value> {
    Json(json!({ "version": OLLAMA_VERSION, "polydraft": env!("CARGO_PKG_VERSION") }))
}

async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(models): State<Arc<Models>>) -> Response {
    if !models.options().serve_metrics {
        let problem = Problem::invalid("metrics are turned off on this server");
        return problem.with_status(StatusCode::NOT_IMPLEMENTED).into_response();
    }
    let kind = (header::CONTENT_TYPE, "text/plain; version=0.0.4".to_owned());
    // llama.cpp's clients use it to detect that the counters were reset.
    let started = HeaderName::from_static("process-start-time-unix");
    let started = (started, models.metrics().started().to_string());
    ([kind, started], models.metrics().render()).into_response()
}

async fn not_found(uri: Uri) -> Response {
    Problem::invalid(format_args!("unknown path {}", uri.path()))
        .with_status(StatusCode::NOT_FOUND)
        .response(guard::dialect_of(uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let problem =
        Problem::invalid(format_args!("{} does not allow the method {method}", uri.path()));
    problem.with_status(StatusCode::METHOD_NOT_ALLOWED)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    #[tokio::test]
    async fn answers_a_request_whose_handler_panics() {
        async fn broken() -> StatusCode {
            panic!("on purpose")
        }
        let routes: Router = Router::new().route("/", get(broken)).layer(from_fn(catch_panics));
        let answer = TowerToHyperService::new(routes).call(Request::new(Body::empty())).await;
        assert_eq!(answer.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
