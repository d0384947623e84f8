//! The REST frontend: parses a request, calls the service, and renders the response.
//!
//! Names in a path are percent-decoded as one segment each, whatever they contain, without normalisation. Parsing of
//! bodies and queries is strict: an error names any unknown, repeated or mistyped field.

mod accounts;
mod acquire_body;
mod api_keys;
mod asks;
mod barriers;
mod body;
mod call;
mod condition_messages;
mod conditions;
mod connect;
mod events;
pub(crate) mod fuzz_support;
pub(crate) mod health;
mod held_message;
mod instrument;
mod json;
mod latches;
mod lock_sets;
mod locks;
mod namespaces;
mod open_message;
mod openapi;
mod path_params;
mod permit_messages;
mod pools;
pub(crate) mod problem;
mod query;
mod receipt_messages;
mod semaphores;
mod session_messages;
mod sessions;
mod things;
mod tokens;
mod usage_audit;
mod waits;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_api::{ApiError, Code};
use holdfast_backend::Service;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::health::Probes;
use self::instrument::RestProtocol;
use self::problem::Problem;
use crate::call_layer::CallLayer;
use crate::{console, public_pages};

const MAX_ECHOED_PATH_CHARS: usize = 200;

/// Returns every REST route of the service and of the process, and the console. Those that need no credential are
/// limited by the address of their caller, except for probes.
pub(crate) fn routes(service: Service, probes: Probes) -> Router {
    let unlimited = health::probe_routes().with_state(probes.clone()).split_for_parts().0;
    let public = public_routes().with_state(service.clone()).merge(health::metrics_route().with_state(probes));
    let public = public.split_for_parts().0.merge(console::routes());
    let public = public_pages::limit_routes(public, service.clone());
    service_routes().with_state(service).split_for_parts().0.merge(public).merge(unlimited)
}

/// Returns the same routes with their descriptions.
fn openapi_routes() -> OpenApiRouter<Service> {
    // The responses of the probes do not matter here: only the description is used.
    let of_process = health::probe_routes().merge(health::metrics_route()).with_state(Probes::none());
    service_routes().merge(public_routes()).merge(of_process)
}

/// Routes that need no credential, without those about the process.
fn public_routes() -> OpenApiRouter<Service> {
    OpenApiRouter::new().routes(routes!(tokens::public_keys)).merge(openapi::routes())
}

fn service_routes() -> OpenApiRouter<Service> {
    OpenApiRouter::new()
        .routes(routes!(accounts::create, accounts::list))
        .routes(routes!(accounts::get, accounts::update, accounts::delete))
        .routes(routes!(api_keys::create_for, api_keys::list_for))
        .routes(routes!(api_keys::delete_for))
        .routes(routes!(api_keys::create, api_keys::list))
        .routes(routes!(api_keys::delete))
        .routes(routes!(tokens::create))
        .routes(routes!(namespaces::create, namespaces::list))
        .routes(routes!(namespaces::get, namespaces::update, namespaces::delete))
        .routes(routes!(events::watch))
        .routes(routes!(locks::list))
        .routes(routes!(locks::get, locks::delete))
        .routes(routes!(locks::acquire))
        .routes(routes!(locks::release))
        .routes(routes!(locks::check))
        .routes(routes!(lock_sets::acquire))
        .routes(routes!(lock_sets::release))
        .routes(routes!(lock_sets::get))
        .routes(routes!(lock_sets::delete))
        .routes(routes!(lock_sets::check))
        .routes(routes!(lock_sets::reset))
        .routes(routes!(asks::of_lock))
        .routes(routes!(asks::of_semaphore))
        .routes(routes!(asks::of_pool))
        .routes(routes!(conditions::list))
        .routes(routes!(conditions::await_condition))
        .routes(routes!(conditions::signal))
        .routes(routes!(pools::list))
        .routes(routes!(pools::configure))
        .routes(routes!(pools::change))
        .routes(routes!(pools::take))
        .routes(routes!(pools::release))
        .routes(routes!(pools::get))
        .routes(routes!(pools::check))
        .routes(routes!(pools::delete))
        .routes(routes!(semaphores::list))
        .routes(routes!(semaphores::configure))
        .routes(routes!(semaphores::acquire))
        .routes(routes!(semaphores::release))
        .routes(routes!(semaphores::get))
        .routes(routes!(semaphores::check))
        .routes(routes!(semaphores::delete))
        .routes(routes!(latches::list))
        .routes(routes!(latches::create))
        .routes(routes!(latches::count_down))
        .routes(routes!(latches::set_total))
        .routes(routes!(latches::wait))
        .routes(routes!(latches::get))
        .routes(routes!(latches::delete))
        .routes(routes!(barriers::list))
        .routes(routes!(barriers::configure))
        .routes(routes!(barriers::arrive))
        .routes(routes!(barriers::wait))
        .routes(routes!(barriers::leave))
        .routes(routes!(barriers::get))
        .routes(routes!(barriers::delete))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::delete))
        .routes(routes!(sessions::keep_alive))
        .routes(routes!(connect::connect))
        .routes(routes!(waits::list))
        .routes(routes!(usage_audit::usage))
        .routes(routes!(usage_audit::audit))
        .routes(routes!(usage_audit::cluster))
}

/// Adds what concerns every route: problems for unknown routes and wrong methods, and the layer around all calls.
pub(crate) fn with_middleware(routes: Router) -> Router {
    routes
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CallLayer::new(RestProtocol::new()))
}

async fn unknown_route(request: Request) -> Problem {
    let path = request.uri().path();
    // `//` and a `/` at the end would be empty names, which cannot exist: this error says more than "not found".
    if path.starts_with("/v1/") && path[1..].split('/').any(str::is_empty) {
        let detail = "path: has an empty segment; a name has 1 to 128 bytes";
        return Problem::from(ApiError::new(Code::InvalidArgument, detail).with("field", "path"));
    }
    let shown: String = path.chars().take(MAX_ECHOED_PATH_CHARS).collect();
    Problem::from(ApiError::new(Code::NotFound, format!("no such route: {} {shown}", request.method())))
}

/// The router adds `Allow` to the response.
async fn method_not_allowed(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let detail = format!("{method} is not served here; the header Allow lists what is");
    Problem::from(ApiError::new(Code::MethodNotAllowed, detail)).into_response()
}

#[cfg(test)]
mod lock_sets_tests;
#[cfg(test)]
mod lock_validation_tests;
#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
#[cfg(test)]
mod waiting_tests;
