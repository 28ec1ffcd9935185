//! Web pages, compiled into the program. They load from this server only.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::models::Models;

const HTML: &str = "text/html; charset=utf-8";
const FILES: [(&str, &str, &str); 4] = [
    ("/", HTML, include_str!("../../pages/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../../pages/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../../pages/page.js")),
    ("/docs", HTML, include_str!("../../pages/docs.html")),
];
/// Allows a page to load only its own parts and resources of this server.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self' \
    'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors \
    'none'; base-uri 'none'; form-action 'self'";

/// Routes of the pages.
pub fn routes() -> Router<Arc<Models>> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || std::future::ready(page(kind, text))))
    })
}

fn page(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
