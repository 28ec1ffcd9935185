//! Web pages, compiled into the program. They load from this server only.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::models::Models;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const ICON: &str = include_str!("../../pages/favicon.svg");
/// Path, content type and content of each file.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("../../pages/page.html")),
    ("/page.css", CSS, include_str!("../../pages/page.css")),
    ("/page.js", SCRIPT, include_str!("../../pages/page.js")),
    ("/steps.js", SCRIPT, include_str!("../../pages/steps.js")),
    ("/vendor/marked.js", SCRIPT, include_str!("../../pages/vendor/marked.js")),
    ("/vendor/purify.js", SCRIPT, include_str!("../../pages/vendor/purify.js")),
    ("/docs", HTML, include_str!("../../pages/docs.html")),
    ("/docs.css", CSS, include_str!("../../pages/docs.css")),
    ("/docs.js", SCRIPT, include_str!("../../pages/docs.js")),
    ("/favicon.svg", SVG, ICON),
    // Browsers request this name for pages that name no icon.
    ("/favicon.ico", SVG, ICON),
];
/// Allows a page to load only its own parts and resources of this server, and to insert only HTML
/// that DOMPurify has cleaned. `data:` is for the export of a tree as an image.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
    form-action 'self'; require-trusted-types-for 'script'; trusted-types dompurify";

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
