//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use polydraft::{RuleKind, Token, VerifierKind};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use super::{guard, pages, stream};
use crate::App;
use crate::api::error::Problem;
use crate::api::{Json, Prepared, chat, completions, format, openapi, responses};
use crate::grammar::{Form, Grammar};

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/responses", post(responses))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { Json(openapi::description()) }))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state(app.clone(), guard::key))
        .layer(from_fn_with_state(app.clone(), guard::origin));
    // Pages hold no secrets; their requests need the key.
    let open = Router::new().route("/health", get(health)).merge(pages::routes());
    let open = open.method_not_allowed_fallback(not_so);
    let routes =
        guarded.merge(open).layer(CatchPanicLayer::custom(|_| Problem::internal().into_response()));
    match guard::cors(&app.settings.origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    }
    .with_state(app)
}

async fn health(State(app): State<Arc<App>>) -> Response {
    let status = match app.desk.is_stopping() {
        _ if polydraft_llama::has_ended() => "failed",
        true => "stopping",
        false => return Json(json!({ "status": "ok" })).into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": status }))).into_response()
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.telemetry.render()).into_response()
}

async fn nowhere(uri: Uri) -> Problem {
    Problem::invalid(format_args!("there is nothing at {}", uri.path()))
        .status(StatusCode::NOT_FOUND)
}

async fn not_so(method: Method, uri: Uri) -> Problem {
    let problem = Problem::invalid(format_args!("{} does not answer to {method}", uri.path()));
    problem.status(StatusCode::METHOD_NOT_ALLOWED)
}

fn described(app: &App) -> serde_json::Value {
    json!({
        "id": app.name,
        "object": "model",
        "created": app.started,
        "owned_by": "polydraft",
        "max_model_len": app.context,
        "speculation": app.speculation.as_ref().map(|speculation| json!({
            "verifier": speculation.verifier.to_string(),
            "tree": speculation.tree.to_string(),
            "draft": app.draft,
            "verifiers": VerifierKind::<RuleKind>::all()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        })),
    })
}

async fn models(State(app): State<Arc<App>>) -> Response {
    Json(json!({ "object": "list", "data": [described(&app)] })).into_response()
}

async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    // What is no text names no model.
    match name.is_ok_and(|Path(name)| name == app.name) {
        true => Ok(Json(described(&app)).into_response()),
        false => {
            let problem =
                Problem::invalid(format_args!("there is no such model here, only {:?}", app.name));
            Err(problem.of("model").code("model_not_found").status(StatusCode::NOT_FOUND))
        }
    }
}

async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(app, headers, body, completions::prepare).await
}

async fn chat(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(app, headers, body, chat::prepare).await
}

async fn responses(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    answer(app, headers, body, responses::prepare).await
}

/// Reads a request, hands it to the engine, and answers, at once or as a stream.
async fn answer(
    app: Arc<App>,
    headers: HeaderMap,
    body: Body,
    prepare: fn(&App, &[u8]) -> Result<Prepared, Problem>,
) -> Result<Response, Problem> {
    let body = guard::body(&app, &headers, body).await?;
    // Encoding a long prompt takes its time.
    let at = app.clone();
    let prepared = tokio::task::spawn_blocking(move || prepare(&at, &body)).await;
    let Prepared { mut asked, form, mut answer, stream, ignored } =
        prepared.map_err(|_| Problem::internal())??;
    let ignored = Ignored::of(&ignored);
    if let Some(form) = form {
        let end_tokens = asked.first().map(|asked| asked.limits.end_tokens.clone());
        let grammar = grammar(app.clone(), form, end_tokens.unwrap_or_default()).await?;
        asked.iter_mut().for_each(|asked| asked.grammar = Some(grammar.clone()));
    }
    let mut events = app.desk.submit(asked)?;
    if stream {
        return Ok(ignored.said(stream::of(answer, events)));
    }
    while !answer.is_complete() {
        // A thread that is gone will say nothing more.
        let event = events.next().await.ok_or_else(Problem::internal)?;
        answer.take(event)?;
    }
    // With many log-probabilities so does writing it.
    let written = tokio::task::spawn_blocking(move || Json(answer.whole()).into_response()).await;
    written.map(|answer| ignored.said(answer)).map_err(|_| Problem::internal())
}

/// The header that names parameters which were ignored.
const IGNORED: HeaderName = HeaderName::from_static("x-polydraft-ignored");
/// Bytes of it at most.
const LONGEST: usize = 1024;

/// The names of ignored parameters, for the header.
struct Ignored(Option<HeaderValue>);

impl Ignored {
    fn of(names: &[String]) -> Self {
        if names.is_empty() {
            return Self(None);
        }
        let mut names = names.join(", ");
        // A header is of visible ASCII.
        names.retain(|sign| sign == ' ' || sign.is_ascii_graphic());
        names.truncate(LONGEST);
        tracing::info!(%names, "parameters that are ignored");
        Self(HeaderValue::from_str(&names).ok())
    }

    fn said(self, mut answer: Response) -> Response {
        if let Some(names) = self.0 {
            answer.headers_mut().insert(IGNORED, names);
        }
        answer
    }
}

/// A form's grammar. They are made one after another, for some take a while and other work needs
/// threads too; one that is being made keeps its place where its client has gone away.
async fn grammar(app: Arc<App>, form: Form, end_tokens: Vec<Token>) -> Result<Grammar, Problem> {
    // Closed never.
    let place = app.forming.clone().acquire_owned().await;
    let made = tokio::task::spawn_blocking(move || {
        let _place = place;
        format::grammar(&app, form, &end_tokens)
    });
    made.await.map_err(|_| Problem::internal())?
}
