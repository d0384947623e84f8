//! The console: pages and scripts that are built into the program. They contain no data; the user supplies a key, and
//! the scripts make the same calls as any other client.
//!
//! The page loads nothing from other hosts and interprets no text as markup. The policy below forbids both, so that a
//! name like `<script>` is a name.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use holdfast_api::{ApiError, Code};

use crate::rest::problem::Problem;

const PAGE: &str = "index.html";
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";
/// Browsers cache the files and revalidate them before each use, so that a new release takes effect at once.
const CACHE_DIRECTIVE: &str = "no-cache";

macro_rules! files {
    ($($name:literal)+) => {
        /// Every file by its name.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("assets/", $name)))),+];
    };
}

files! {
    "index.html" "icon.svg" "tokens.css" "layout.css" "parts.css" "views.css"
    "main.js" "route.js" "auth.js" "api.js" "asking.js" "stream.js" "live.js" "dom.js" "format.js" "time.js" "dialog.js"
    "sign-in.js" "views.js" "locks.js" "lock-row.js" "tree.js" "lock-detail.js" "waits.js" "graph.js" "sessions.js"
    "semaphores.js" "pools.js" "queue.js" "latches.js" "barriers.js" "events.js" "namespaces.js" "lock-table.js"
    "keys.js" "key-dialogs.js" "usage.js" "audit.js" "cluster.js" "accounts.js" "page.js"
}

/// Identifies the files of this program: another release has another version.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = crc32fast::Hasher::new();
    for (name, text) in FILES {
        hasher.update(name.as_bytes());
        hasher.update(text.as_bytes());
    }
    format!("\"{:08x}\"", hasher.finalize())
});

/// Returns the routes of the console. It needs no credential, because its data needs a key.
pub(crate) fn routes() -> Router {
    Router::new()
        .route("/console", get(|headers: HeaderMap| async move { serve_file(PAGE, &headers) }))
        .route("/console/", get(|| async { Redirect::permanent("/console") }))
        .route(
            "/console/{file}",
            get(|Path(file): Path<String>, headers: HeaderMap| async move { serve_file(&file, &headers) }),
        )
}

fn serve_file(name: &str, headers: &HeaderMap) -> Response {
    let Some((name, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        return Problem::from(ApiError::new(Code::NotFound, "no such file of the console")).into_response();
    };
    let common = [
        (CACHE_CONTROL, CACHE_DIRECTIVE),
        (ETAG, VERSION.as_str()),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == VERSION.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(CONTENT_TYPE, content_type(name))], *text).into_response()
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    }
}

#[cfg(test)]
mod tests;
