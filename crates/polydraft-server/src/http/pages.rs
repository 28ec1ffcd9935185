//! Web pages. They are part of the program, and load from this server only.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::fleet::Fleet;

const HTML: &str = "text/html; charset=utf-8";
const FILES: [(&str, &str, &str); 4] = [
    ("/", HTML, include_str!("../../pages/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../../pages/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../../pages/page.js")),
    ("/docs", HTML, include_str!("../../pages/docs.html")),
];
/// What a page may load: its own parts, and this server's.
const ALLOWED: &str = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' \
    'unsafe-inline'; img-src 'self' data:; \
                       frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// Their routes.
pub fn routes() -> Router<Arc<Fleet>> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || std::future::ready(page(kind, text))))
    })
}

fn page(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, ALLOWED),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
