//! The routes.

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

use super::{guard, pages};
use crate::api::openai::openapi;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::{anthropic, llama, ollama, openai};
use crate::fleet::{Fleet, Status};

/// All routes.
pub fn router(fleet: Arc<Fleet>) -> Router {
    // Clients that were given an address without /v1 find the same.
    let v1 = openai::routes().merge(anthropic::routes());
    let guarded = Router::new()
        .nest("/v1", v1.clone())
        .merge(v1)
        .merge(ollama::routes())
        .merge(llama::routes())
        .route("/api/version", get(version))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { Json(openapi::description()) }))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state(fleet.clone(), guard::key))
        .layer(from_fn_with_state(fleet.clone(), guard::origin));
    // Pages hold no secrets; their requests need the key.
    let open = Router::new().route("/health", get(health)).merge(pages::routes());
    let open = open.method_not_allowed_fallback(not_so);
    let routes = guarded.merge(open).layer(from_fn(caught));
    let root = fleet.options().root.clone();
    let all = match guard::cors(&fleet.options().origins) {
        Some(layer) => routes.layer(layer).layer(map_response(guard::methods)),
        None => routes,
    };
    let all: Router = all.with_state(fleet);
    if root.is_empty() { all } else { Router::new().nest(&root, all.clone()).merge(all) }
}

/// A request that breaks the server is answered all the same.
async fn caught(request: Request, next: Next) -> Response {
    // It is dropped unfinished: nothing that it had is seen again.
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answer.unwrap_or_else(|_| Problem::internal().into_response())
}

/// By the model that was asked for first: with several, others are loaded when they are asked for.
async fn health(State(fleet): State<Arc<Fleet>>) -> Response {
    let first = fleet.all().map(|(_, status, _)| status).next();
    let loaded = fleet.all().any(|(_, status, _)| status == Status::Loaded);
    let status = match first {
        _ if polydraft_runtime::has_ended() => "failed",
        Some(Status::Stopping) => "stopping",
        Some(Status::Loading) if !loaded => "loading model",
        _ => return Json(json!({ "status": "ok" })).into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": status }))).into_response()
}

async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(fleet): State<Arc<Fleet>>) -> Response {
    if !fleet.options().metrics {
        let problem = Problem::invalid("this server was started without metrics");
        return problem.status(StatusCode::NOT_IMPLEMENTED).into_response();
    }
    let kind = (header::CONTENT_TYPE, "text/plain; version=0.0.4".to_owned());
    // llama.cpp's clients tell by it whether counts have begun anew.
    let started = HeaderName::from_static("process-start-time-unix");
    let started = (started, fleet.metrics().started().to_string());
    ([kind, started], fleet.metrics().render()).into_response()
}

async fn nowhere(uri: Uri) -> Response {
    Problem::invalid(format_args!("there is nothing at {}", uri.path()))
        .status(StatusCode::NOT_FOUND)
        .response(guard::dialect_of(uri.path()))
}

async fn not_so(method: Method, uri: Uri) -> Problem {
    let problem = Problem::invalid(format_args!("{} does not answer to {method}", uri.path()));
    problem.status(StatusCode::METHOD_NOT_ALLOWED)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    #[tokio::test]
    async fn a_request_that_breaks_the_server_is_answered() {
        async fn broken() -> StatusCode {
            panic!("on purpose")
        }
        let routes: Router = Router::new().route("/", get(broken)).layer(from_fn(caught));
        let answer = TowerToHyperService::new(routes).call(Request::new(Body::empty())).await;
        assert_eq!(answer.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
