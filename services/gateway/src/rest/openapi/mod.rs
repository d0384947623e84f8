//! The description of the REST API (OpenAPI 3.1), derived from the handlers themselves: `/openapi.json`, and `/docs` to
//! read it in a browser.
//!
//! A route enters the router only together with its description, so none is missing. This module adds the shared parts
//! of all calls (names in the path, headers, credentials).

mod common;
mod problems;

use std::sync::LazyLock;

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use problems::*;

/// The page shows only the document, and calls only this process.
const PAGE: &str = include_str!("docs.html");
const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; \
                           style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Both change with a new release only; a minute reduces repeated requests.
const CACHE_DIRECTIVE: &str = "max-age=60";

/// The document, rendered once.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let document = common::complete(super::openapi_routes().into_openapi());
    document.to_json().expect("a description has only texts, numbers, and keys that are texts")
});

/// Returns the routes of the description.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(openapi)).routes(routes!(docs))
}

/// This document
///
/// Every call with its parameters and its possible responses.
#[utoipa::path(get, path = "/openapi.json", tag = "Description", operation_id = "describe", security(()),
    responses((status = 200, description = "The description of the API.", body = serde_json::Value),
        Problems<(BaseErrors, RateErrors)>))]
async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, CACHE_DIRECTIVE)], DOCUMENT.as_str()).into_response()
}

/// This document as a page
#[utoipa::path(get, path = "/docs", tag = "Description", operation_id = "read_description", security(()),
    responses((status = 200, description = "A page that needs nothing from elsewhere.", body = String,
        content_type = "text/html"), Problems<(BaseErrors, RateErrors)>))]
async fn docs() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (CACHE_CONTROL, CACHE_DIRECTIVE),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests;
