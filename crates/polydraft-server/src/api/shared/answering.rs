//! Request to answer, full or streamed, for all routes that decode.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use polydraft::Token;
use serde_json::{Map, Value};

use super::body::read_body;
use super::error::{Dialect, Problem};
use super::json::Json;
use super::strict::parse;
use super::{format, stream};
use crate::LoadedModel;
use crate::api::{Prepared, Reply};
use crate::grammar::{Form, Grammar};
use crate::models::Models;
use crate::request_log::RequestLog;

/// Reads a request's body as JSON, and gets the model that it names.
///
/// # Errors
/// A body that is not a JSON object; a model that is unknown or cannot be loaded.
pub async fn read_request(
    models: &Models,
    request: Request,
) -> Result<(Arc<LoadedModel>, Value), Problem> {
    let (head, body) = request.into_parts();
    let body = read_body(models.options().max_body_bytes, &head.headers, body).await?;
    let body = run_blocking(move || parse(&body)).await?;
    // Older clients of Ollama's name models so.
    let fields: &[&str] = if head.uri.path().ends_with("/api/show") { &["name"] } else { &[] };
    let given = ["model"].iter().chain(fields).filter_map(|field| body.get(*field));
    let model = match given.into_iter().find(|model| !model.is_null()) {
        None => None,
        Some(Value::String(model)) => Some(model.as_str()),
        Some(_) => return Err(Problem::invalid("model: expected a string").with_param("model")),
    };
    let model = models.get_or_load(model).await?;
    if let Some(log) = head.extensions.get::<Arc<RequestLog>>() {
        log.set_model(model.name());
    }
    Ok((model, body))
}

/// Runs slow work on a blocking thread.
///
/// # Errors
/// Errors of the work, or its panic.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Problem::internal())?
}

/// Function of a route that prepares a request and its form of answer.
pub type Prepare<A> = fn(&LoadedModel, Value) -> Result<Prepared<A>, Problem>;

/// Function of a route that looks at a request first, and answers some without decoding.
pub type Shortcut = fn(&LoadedModel, &Value) -> Result<Direct, Problem>;

/// Outcome of a route's first look at a request.
#[derive(Default)]
pub struct Direct {
    /// Body of the answer to a request without output; `None` decodes.
    pub body: Option<Value>,
    /// Whether the model is to be unloaded after the answer.
    pub unloads: bool,
}

/// Returns a route that decodes.
pub fn decoding_route<A: Reply + 'static>(
    prepare: Prepare<A>,
    dialect: Dialect,
) -> MethodRouter<Arc<Models>> {
    decoding_route_unless(|_, _| Ok(Direct::default()), prepare, dialect)
}

/// Returns a route that decodes unless `shortcut` answers.
pub fn decoding_route_unless<A: Reply + 'static>(
    shortcut: Shortcut,
    prepare: Prepare<A>,
    dialect: Dialect,
) -> MethodRouter<Arc<Models>> {
    post(move |State(models): State<Arc<Models>>, request: Request| {
        respond(models, request, (shortcut, prepare), dialect)
    })
}

/// Reads a request, submits it to the engine, and returns the answer or the error.
async fn respond<A: Reply + 'static>(
    models: Arc<Models>,
    request: Request,
    work: (Shortcut, Prepare<A>),
    dialect: Dialect,
) -> Response {
    let result = decode(models, request, work, dialect).await;
    result.unwrap_or_else(|problem| problem.response(dialect))
}

async fn decode<A: Reply + 'static>(
    models: Arc<Models>,
    request: Request,
    (shortcut, prepare): (Shortcut, Prepare<A>),
    dialect: Dialect,
) -> Result<Response, Problem> {
    let log = request.extensions().get::<Arc<RequestLog>>().cloned();
    let (model, mut body) = read_request(&models, request).await?;
    let Direct { body: direct, unloads } = shortcut(&model, &body)?;
    if let Some(answer) = direct {
        if unloads {
            models.unload(model).await;
        }
        return Ok(Json(answer).into_response());
    }
    set_defaults(&model.options.defaults, &mut body);
    let shared = model.clone();
    let Prepared { mut requests, form, answer, stream, ignored } =
        run_blocking(move || prepare(&shared, body)).await?;
    let mut answer: Box<dyn Reply> = Box::new(answer);
    let ignored = IgnoredParams::new(&ignored, log.as_deref());
    if model.options.context.is_some() {
        requests.iter_mut().for_each(|params| model.limit_to_context(params));
    }
    if let Some(form) = form {
        if requests.iter().any(|params| params.allowed.is_some()) {
            // The two may have no token in common.
            let problem = "allowed_token_ids cannot be combined with a form of the output or tools";
            return Err(Problem::invalid(problem).with_param("allowed_token_ids"));
        }
        let end_tokens = requests.first().map(|params| params.limits.end_tokens.clone());
        let grammar = build_grammar(model.clone(), form, end_tokens.unwrap_or_default()).await?;
        requests.iter_mut().for_each(|params| params.grammar = Some(grammar.clone()));
    }
    let mut events = model.engine.submit(requests, log.clone())?;
    if unloads {
        models.unload(model).await;
    }
    if stream {
        return Ok(ignored.add_header(stream::respond(answer, events, log, dialect)));
    }
    while !answer.is_complete() {
        // No event: the engine thread is gone.
        let event = events.next().await.ok_or_else(Problem::internal)?;
        answer.apply(event)?;
    }
    // Serializing many log-probabilities is slow too.
    let written = run_blocking(move || Ok(answer.full_response())).await?;
    Ok(ignored.add_header(written))
}

/// Answers with a value computed from the body, without decoding.
pub async fn respond_computed(
    models: Arc<Models>,
    request: Request,
    work: impl FnOnce(&LoadedModel, Value) -> Result<Value, Problem> + Send + 'static,
    dialect: Dialect,
) -> Response {
    let result = async {
        let (model, body) = read_request(&models, request).await?;
        run_blocking(move || work(&model, body)).await
    };
    match result.await {
        Ok(value) => Json(value).into_response(),
        Err(problem) => problem.response(dialect),
    }
}

/// Adds default parameters that a request omits.
pub fn set_defaults(defaults: &Map<String, Value>, body: &mut Value) {
    let Value::Object(body) = body else { return };
    // Stream options are an error in a request that does not stream.
    let streams = body.get("stream").or(defaults.get("stream")) == Some(&Value::Bool(true));
    for (name, value) in defaults {
        if streams || name != "stream_options" {
            body.entry(name).or_insert_with(|| value.clone());
        }
    }
}

/// Header with the names of ignored parameters.
const IGNORED_HEADER: HeaderName = HeaderName::from_static("x-polydraft-ignored");
/// Maximum bytes of the header.
const MAX_HEADER_BYTES: usize = 1024;

/// Names of ignored parameters, as a header value.
struct IgnoredParams(Option<HeaderValue>);

impl IgnoredParams {
    fn new(names: &[String], log: Option<&RequestLog>) -> Self {
        if names.is_empty() {
            return Self(None);
        }
        let mut names = names.join(", ");
        // Headers allow visible ASCII only.
        names.retain(|character| character == ' ' || character.is_ascii_graphic());
        names.truncate(MAX_HEADER_BYTES);
        let id = log.map_or("", RequestLog::id);
        log::info!(id; "ignored parameters: {names}");
        Self(HeaderValue::from_str(&names).ok())
    }

    fn add_header(self, mut answer: Response) -> Response {
        if let Some(names) = self.0 {
            answer.headers_mut().insert(IGNORED_HEADER, names);
        }
        answer
    }
}

/// Builds the grammar of a form. Grammars are built one at a time, because some take long and other
/// work needs threads too; the permit is held even if the client goes away.
async fn build_grammar(
    model: Arc<LoadedModel>,
    form: Form,
    end_tokens: Vec<Token>,
) -> Result<Grammar, Problem> {
    // Never closed.
    let permit = model.grammar_permit.clone().acquire_owned().await;
    let built = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        format::build_grammar(&model, form, &end_tokens)
    });
    built.await.map_err(|_| Problem::internal())?
}
