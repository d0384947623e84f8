//! The REST door: parse, call the service, show the answer.
//!
//! Names in a path are percent-decoded as one segment each, whatever they contain; nothing is normalised. Bodies and
//! queries are strict: what is unknown, repeated or of another type is refused by name.

mod accounts;
mod acquire_body;
mod answer;
mod api_keys;
mod body;
mod call;
mod connect;
mod events;
mod lock_sets;
mod locks;
mod names;
mod namespaces;
mod observe;
mod query;
pub(crate) mod reading;
mod session_messages;
mod sessions;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::{ApiError, Code};
use crate::service::Service;

pub(crate) use answer::{Problem, after_panic};
pub(crate) use body::MAX_BODY_BYTES;

const MAX_SHOWN_PATH: usize = 200;

/// Every REST route of the service, without health and metrics.
pub(crate) fn routes(service: Service) -> Router {
    Router::new()
        .route("/v1/accounts", post(accounts::create).get(accounts::list))
        .route("/v1/accounts/{account}", get(accounts::get).patch(accounts::update).delete(accounts::delete))
        .route("/v1/accounts/{account}/api-keys", post(api_keys::create_for).get(api_keys::list_for))
        .route("/v1/accounts/{account}/api-keys/{key_id}", delete(api_keys::delete_for))
        .route("/v1/api-keys", post(api_keys::create).get(api_keys::list))
        .route("/v1/api-keys/{key_id}", delete(api_keys::delete))
        .route("/v1/namespaces", post(namespaces::create).get(namespaces::list))
        .route("/v1/namespaces/{namespace}", get(namespaces::get).patch(namespaces::update).delete(namespaces::delete))
        .route("/v1/namespaces/{namespace}/events", get(events::watch))
        .route("/v1/namespaces/{namespace}/locks", get(locks::list))
        .route("/v1/namespaces/{namespace}/locks/{name}", get(locks::get).delete(locks::delete))
        .route("/v1/namespaces/{namespace}/locks/{name}/acquire", post(locks::acquire))
        .route("/v1/namespaces/{namespace}/locks/{name}/release", post(locks::release))
        .route("/v1/namespaces/{namespace}/locks/{name}/check", post(locks::check))
        .route("/v1/namespaces/{namespace}/lock-sets/acquire", post(lock_sets::acquire))
        .route("/v1/namespaces/{namespace}/lock-sets/release", post(lock_sets::release))
        .route("/v1/namespaces/{namespace}/lock-sets/get", post(lock_sets::get))
        .route("/v1/namespaces/{namespace}/lock-sets/delete", post(lock_sets::delete))
        .route("/v1/namespaces/{namespace}/lock-sets/check", post(lock_sets::check))
        .route("/v1/namespaces/{namespace}/reset", post(lock_sets::reset))
        .route("/v1/namespaces/{namespace}/sessions", post(sessions::create).get(sessions::list))
        .route("/v1/namespaces/{namespace}/sessions/{session}", get(sessions::get).delete(sessions::delete))
        .route("/v1/namespaces/{namespace}/sessions/{session}/keepalive", post(sessions::keep_alive))
        .route("/v1/namespaces/{namespace}/connect", get(connect::connect))
        .with_state(service)
}

/// Adds what every answer has, whatever its route: problems for unknown routes, wrong methods and panics, the request
/// id, the deadline, and the figures.
pub(crate) fn finish(routes: Router) -> Router {
    routes
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(after_panic))
        .layer(from_fn(observe::observe))
}

async fn unknown_route(request: Request) -> Problem {
    let path = request.uri().path();
    // `//` and a `/` at the end would be names of no bytes, which nothing can have: better said than "not found".
    if path.starts_with("/v1/") && path[1..].split('/').any(str::is_empty) {
        let detail = "path: has an empty segment; a name has 1 to 128 bytes";
        return Problem::from(ApiError::new(Code::InvalidArgument, detail).with("field", "path"));
    }
    let shown: String = path.chars().take(MAX_SHOWN_PATH).collect();
    Problem::from(ApiError::new(Code::NotFound, format!("no such route: {} {shown}", request.method())))
}

/// The router adds `Allow` to the answer.
async fn wrong_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let detail = format!("{method} is not served here; the header Allow lists what is");
    Problem::from(ApiError::new(Code::MethodNotAllowed, detail)).into_response()
}

#[cfg(test)]
mod lock_sets_tests;
#[cfg(test)]
mod lock_values_tests;
#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
#[cfg(test)]
mod waiting_tests;
