//! Access control.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::api::shared::error::{Dialect, Problem};
use crate::fleet::Fleet;

/// Where Anthropic's clients put the key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What stands for all origins of the browser's own machine.
pub const LOCAL: &str = "localhost";

/// Lets requests with the key through, if there is one. The comparison takes constant time.
pub async fn key(State(fleet): State<Arc<Fleet>>, request: Request, next: Next) -> Response {
    let Some(key) = &fleet.options().key else { return next.run(request).await };
    if shows(request.headers(), key) {
        return next.run(request).await;
    }
    let problem = Problem::invalid(
        "the API key is missing or wrong: expected 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'",
    );
    let problem = problem.code("invalid_api_key").status(StatusCode::UNAUTHORIZED);
    problem.response(dialect_of(request.uri().path()))
}

fn shows(headers: &HeaderMap, key: &str) -> bool {
    let header = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let bearer = header(header::AUTHORIZATION).and_then(|value| value.strip_prefix(b"Bearer "));
    let shown = bearer.or_else(|| header(API_KEY)).unwrap_or_default();
    shown.ct_eq(key.as_bytes()).into()
}

/// Whose interface a path belongs to.
pub fn dialect_of(path: &str) -> Dialect {
    match path.strip_prefix("/v1").unwrap_or(path) {
        path if path.starts_with("/messages") => Dialect::Anthropic,
        path if path.starts_with("/api/") => Dialect::Ollama,
        _ => Dialect::OpenAi,
    }
}

/// Refuses what pages from elsewhere would have done: a browser sends a plain request before it
/// asks whether it may, and the answer, which the page is not shown, would cost as much as any.
/// Clients that are no browsers send no origin.
pub async fn origin(State(fleet): State<Arc<Fleet>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    match headers.get(header::ORIGIN) {
        Some(origin)
            if request.method() == Method::POST
                && !may_ask(&fleet.options().origins, origin, headers) =>
        {
            let origin = String::from_utf8_lossy(origin.as_bytes());
            let problem = Problem::invalid(format_args!(
                "pages of {origin} may not use this server: its operator can allow that origin \
                 (option cors)"
            ));
            problem.code("origin_not_allowed").status(StatusCode::FORBIDDEN).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether an origin is one of those, or this server as the browser knows it; before it may be a
/// proxy that has TLS.
fn may_ask(origins: &[String], origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let (origin, host) = (origin.as_bytes(), headers.get(header::HOST).map(HeaderValue::as_bytes));
    let own = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    let own = own.zip(host).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host));
    own || is_allowed(origins, origin)
}

fn is_allowed(origins: &[String], origin: &[u8]) -> bool {
    origins.iter().any(|allowed| match allowed.as_str() {
        "*" => true,
        LOCAL => is_local(origin),
        allowed => allowed.as_bytes() == origin,
    })
}

/// Whether a page comes from a server on the browser's own machine.
fn is_local(origin: &[u8]) -> bool {
    let uri: Option<Uri> = std::str::from_utf8(origin).ok().and_then(|text| text.parse().ok());
    let host = uri.as_ref().and_then(Uri::host);
    host.is_some_and(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&host))
}

/// Names the methods in answers that allow any: of pages that send cookies, which a proxy may need,
/// browsers take * for a method of that name.
pub async fn methods(mut answer: Response) -> Response {
    if let Some(methods) = answer.headers_mut().get_mut(header::ACCESS_CONTROL_ALLOW_METHODS) {
        *methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
    }
    answer
}

/// CORS, for the allowed origins.
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    // Clients send headers of their own, such as x-stainless-lang: none of them means anything
    // here.
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(AllowHeaders::mirror_request());
    let origins = origins.to_vec();
    let allowed = AllowOrigin::predicate(move |origin, _| is_allowed(&origins, origin.as_bytes()));
    Some(layer.allow_origin(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_of_this_machine() {
        let local = [LOCAL.to_owned()];
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
