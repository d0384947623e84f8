//! Middleware of every REST response: common headers, deadline, and metrics.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use holdfast_api::ApiError;
use holdfast_routing::with_request_id;
use holdfast_telemetry::continue_trace;
use metrics::{counter, histogram};
use tracing::{Instrument, debug, error, info_span};

use super::Problem;
use crate::head::{Head, throttle, trace_parent};

pub(super) async fn instrument(mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let head = Head::rest(request.headers());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = method_label(request.method());
    let span = info_span!("call", request_id = head.request_id);
    if let Some(parent) = trace_parent(request.headers()) {
        continue_trace(&span, parent);
    }
    request.extensions_mut().insert(head.clone());
    let called = with_request_id(&head.request_id, next.run(request)).instrument(span.clone());
    let answered = head.within_deadline(called).await;
    let mut response = answered.unwrap_or_else(|| Problem::from(ApiError::deadline_exceeded()).into_response());
    head.add_response_headers(response.headers_mut());
    // Responses describe the present, and some contain a secret.
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // Only templates of routes become labels: the number of paths that callers can request is unlimited.
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str).to_owned();
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        span.in_scope(|| error!(method, route, "a call ended with a fault of the service"));
    }
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        throttle().await;
    }
    let status = response.status().as_u16();
    span.in_scope(|| debug!(method, route, status, "a call is answered"));
    let code = response.status().as_str().to_owned();
    counter!("holdfast_http_requests_total", "route" => route.clone(), "method" => method, "code" => code).increment(1);
    histogram!("holdfast_request_seconds", "route" => route).record(started.elapsed().as_secs_f64());
    response
}

fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
