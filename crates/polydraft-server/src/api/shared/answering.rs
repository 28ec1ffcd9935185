//! From a request to its answer, at once or as a stream, on every route that decodes.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use polydraft::Token;
use serde_json::{Map, Value};

use super::body::read_body;
use super::error::{Dialect, Problem};
use super::json::Json;
use super::strict::parse;
use super::{format, stream};
use crate::App;
use crate::api::{Prepared, Reply};
use crate::fleet::Fleet;
use crate::grammar::{Form, Grammar};

/// Reads a request's body into JSON, and finds the model that it names.
///
/// # Errors
/// No body that is a JSON object; a model that is not here, or cannot be loaded.
pub async fn read(
    fleet: &Fleet,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Arc<App>, Value), Problem> {
    let body = read_body(fleet.options().body, headers, body).await?;
    let body = blocking(move || parse(&body)).await?;
    let model = match body.get("model") {
        None | Some(Value::Null) => None,
        Some(Value::String(model)) => Some(model.as_str()),
        Some(_) => return Err(Problem::invalid("model: expected a string").of("model")),
    };
    Ok((fleet.find(model).await?, body))
}

/// Work that takes its time: not for the threads that answer.
///
/// # Errors
/// Those of the work; it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Problem::internal())?
}

/// How a route prepares a request, whose answer has its form.
pub type Prepare<A> = fn(&App, Value) -> Result<Prepared<A>, Problem>;

/// A route that decodes.
pub fn decodes<A: Reply + 'static>(
    prepare: Prepare<A>,
    dialect: Dialect,
) -> MethodRouter<Arc<Fleet>> {
    post(move |State(fleet): State<Arc<Fleet>>, headers: HeaderMap, body: Body| {
        answer(fleet, headers, body, prepare, dialect)
    })
}

/// Reads a request, hands it to the engine, and answers.
async fn answer<A: Reply + 'static>(
    fleet: Arc<Fleet>,
    headers: HeaderMap,
    body: Body,
    prepare: Prepare<A>,
    dialect: Dialect,
) -> Response {
    let answered = decode(fleet, headers, body, prepare, dialect).await;
    answered.unwrap_or_else(|problem| problem.response(dialect))
}

async fn decode<A: Reply + 'static>(
    fleet: Arc<Fleet>,
    headers: HeaderMap,
    body: Body,
    prepare: Prepare<A>,
    dialect: Dialect,
) -> Result<Response, Problem> {
    let (app, mut body) = read(&fleet, &headers, body).await?;
    set_defaults(&app.options.defaults, &mut body);
    let at = app.clone();
    let Prepared { mut requests, form, answer, stream, ignored } =
        blocking(move || prepare(&at, body)).await?;
    let mut answer: Box<dyn Reply> = Box::new(answer);
    let ignored = Ignored::new(&ignored);
    if app.options.context.is_some() {
        requests.iter_mut().for_each(|params| app.limit(params));
    }
    if let Some(form) = form {
        if requests.iter().any(|params| params.allowed.is_some()) {
            // There may be no token that both allow.
            let problem = "allowed_token_ids cannot be given beside a form of the output or tools";
            return Err(Problem::invalid(problem).of("allowed_token_ids"));
        }
        let end_tokens = requests.first().map(|params| params.limits.end_tokens.clone());
        let grammar = grammar(app.clone(), form, end_tokens.unwrap_or_default()).await?;
        requests.iter_mut().for_each(|params| params.grammar = Some(grammar.clone()));
    }
    let mut events = app.desk.submit(requests)?;
    if stream {
        return Ok(ignored.named_in(stream::respond(answer, events, dialect)));
    }
    while !answer.is_complete() {
        // A thread that is gone will say nothing more.
        let event = events.next().await.ok_or_else(Problem::internal)?;
        answer.take(event)?;
    }
    // With many log-probabilities writing it takes its time too.
    let written = blocking(move || Ok(answer.whole())).await?;
    Ok(ignored.named_in(written))
}

/// Answers with what is computed of a body, without decoding.
pub async fn compute(
    fleet: Arc<Fleet>,
    headers: HeaderMap,
    body: Body,
    work: impl FnOnce(&App, Value) -> Result<Value, Problem> + Send + 'static,
    dialect: Dialect,
) -> Response {
    let answered = async {
        let (app, body) = read(&fleet, &headers, body).await?;
        blocking(move || work(&app, body)).await
    };
    match answered.await {
        Ok(value) => Json(value).into_response(),
        Err(problem) => problem.response(dialect),
    }
}

/// Gives a request what it does not say.
pub fn set_defaults(defaults: &Map<String, Value>, body: &mut Value) {
    let Value::Object(body) = body else { return };
    // Without a stream they would be wrong.
    let streams = body.get("stream").or(defaults.get("stream")) == Some(&Value::Bool(true));
    for (name, value) in defaults {
        if streams || name != "stream_options" {
            body.entry(name).or_insert_with(|| value.clone());
        }
    }
}

/// The header that names parameters which were ignored.
const IGNORED: HeaderName = HeaderName::from_static("x-polydraft-ignored");
/// Bytes of it at most.
const LONGEST: usize = 1024;

/// The names of ignored parameters, for the header.
struct Ignored(Option<HeaderValue>);

impl Ignored {
    fn new(names: &[String]) -> Self {
        if names.is_empty() {
            return Self(None);
        }
        let mut names = names.join(", ");
        // A header is of visible ASCII.
        names.retain(|sign| sign == ' ' || sign.is_ascii_graphic());
        names.truncate(LONGEST);
        log::info!("parameters that are ignored: {names}");
        Self(HeaderValue::from_str(&names).ok())
    }

    fn named_in(self, mut answer: Response) -> Response {
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
