//! Access control.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::api::shared::error::{Dialect, Problem};
use crate::models::Models;

/// Header in which Anthropic's clients send the key.
const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

/// Stands for all origins of the browser's own machine.
pub const LOCALHOST: &str = "localhost";

/// Middleware that requires the API key, if one is set. The comparison takes constant time.
pub async fn require_key(
    State(models): State<Arc<Models>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = &models.options().api_key else { return next.run(request).await };
    if has_key(request.headers(), key) {
        return next.run(request).await;
    }
    let problem = Problem::invalid(
        "the API key is missing or wrong: expected 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
    );
    let problem = problem.with_code("invalid_api_key").with_status(StatusCode::UNAUTHORIZED);
    problem.response(dialect_of(request.uri().path()))
}

fn has_key(headers: &HeaderMap, key: &str) -> bool {
    let header = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let bearer = header(header::AUTHORIZATION).and_then(|value| value.strip_prefix(b"Bearer "));
    let presented = bearer.or_else(|| header(API_KEY_HEADER)).unwrap_or_default();
    presented.ct_eq(key.as_bytes()).into()
}

/// Returns the protocol to which a path belongs.
pub fn dialect_of(path: &str) -> Dialect {
    match path.strip_prefix("/v1").unwrap_or(path) {
        path if path.starts_with("/messages") => Dialect::Anthropic,
        path if path.starts_with("/api/") => Dialect::Ollama,
        _ => Dialect::OpenAi,
    }
}

/// Middleware that rejects POST requests of pages from other origins. A browser sends simple
/// requests without a preflight; it hides the answer from the page, but computing it costs as much
/// as any. Clients other than browsers send no origin.
pub async fn check_origin(
    State(models): State<Arc<Models>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    match headers.get(header::ORIGIN) {
        Some(origin)
            if request.method() == Method::POST
                && !is_allowed_to_post(&models.options().allowed_origins, origin, headers) =>
        {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            let problem = Problem::invalid(format_args!(
                "requests from pages of {origin} are not allowed; the server's operator can allow \
                 this origin (option cors)"
            ));
            problem
                .with_code("origin_not_allowed")
                .with_status(StatusCode::FORBIDDEN)
                .into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether an origin is in the list, or is this server as the browser addresses it, possibly
/// through a proxy with TLS.
fn is_allowed_to_post(origins: &[String], origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let (origin, host) = (origin.as_bytes(), headers.get(header::HOST).map(HeaderValue::as_bytes));
    let origin_host = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    let same_host = origin_host
        .zip(host)
        .is_some_and(|(origin_host, host)| origin_host.eq_ignore_ascii_case(host));
    same_host || is_allowed(origins, origin)
}

fn is_allowed(origins: &[String], origin: &[u8]) -> bool {
    origins.iter().any(|allowed| match allowed.as_str() {
        "*" => true,
        LOCALHOST => is_local(origin),
        allowed => allowed.as_bytes() == origin,
    })
}

/// Whether a page comes from a server on the browser's own machine.
fn is_local(origin: &[u8]) -> bool {
    let uri: Option<Uri> = std::str::from_utf8(origin).ok().and_then(|text| text.parse().ok());
    let host = uri.as_ref().and_then(Uri::host);
    host.is_some_and(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&host))
}

/// Lists the methods in preflight answers that allow any. For requests with cookies, which a proxy
/// may need, browsers take `*` as a method of that name.
pub async fn list_methods(mut answer: Response) -> Response {
    if let Some(methods) = answer.headers_mut().get_mut(header::ACCESS_CONTROL_ALLOW_METHODS) {
        *methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
    }
    answer
}

/// Returns the CORS layer for the allowed origins.
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    // Clients send additional headers such as x-stainless-lang, which have no effect here.
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(AllowHeaders::mirror_request());
    let origins = origins.to_vec();
    let allowed = AllowOrigin::predicate(move |origin, _| is_allowed(&origins, origin.as_bytes()));
    Some(layer.allow_origin(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_allows_only_origins_of_the_local_machine() {
        let local = [LOCALHOST.to_owned()];
        for origin in
            ["http://localhost", "https://localhost:80", "http://127.0.0.1:3", "http://[::1]:9"]
        {
            assert!(is_allowed(&local, origin.as_bytes()), "{origin}");
        }
        for origin in [
            "http://notlocalhost",
            "http://localhost.evil.com",
            "http://evil.com/localhost",
            "http://localhost@evil.com",
            "null",
            "",
        ] {
            assert!(!is_allowed(&local, origin.as_bytes()), "{origin}");
        }
        assert!(is_allowed(&["*".to_owned()], b"null"));
        assert!(!is_allowed(&["http://a".to_owned()], b"http://a:1"));
    }
}
