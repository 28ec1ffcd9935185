//! Who may ask, and how much.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tower_http::cors::{Any, CorsLayer};

use crate::App;
use crate::api::error::Problem;

/// How long a body may take to arrive.
const BODY: Duration = Duration::from_secs(30);

/// Lets those through who show the key, if there is one. The comparison takes as long however much of it is right.
pub async fn key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.settings.key else { return next.run(request).await };
    let shown = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if bool::from(shown.ct_eq(key.as_bytes())) {
        return next.run(request).await;
    }
    let problem = Problem::invalid("the API key is missing or wrong: expected 'Authorization: Bearer KEY'");
    problem.code("invalid_api_key").status(StatusCode::UNAUTHORIZED).into_response()
}

/// The body, if it is neither too large nor too slow.
///
/// # Errors
/// It is.
pub async fn body(app: &App, headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Problem> {
    let most = app.settings.body;
    let too_large = || {
        let problem = Problem::invalid(format_args!("the body has more than {most} bytes"));
        problem.code("body_too_large").status(StatusCode::PAYLOAD_TOO_LARGE)
    };
    let stated =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if stated.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes.to_vec()),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => {
            let problem = Problem::invalid("the body took too long to arrive");
            Err(problem.status(StatusCode::REQUEST_TIMEOUT))
        }
    }
}

/// Pages from elsewhere may ask only if that was asked for.
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer =
        CorsLayer::new().allow_methods(Any).allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE]);
    Some(match origins.iter().any(|origin| origin == "*") {
        true => layer.allow_origin(Any),
        false => layer.allow_origin(
            origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect::<Vec<_>>(),
        ),
    })
}
