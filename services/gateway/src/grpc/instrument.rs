//! Middleware of every gRPC response: common headers, deadline, and metrics.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use holdfast_api::ApiError;
use holdfast_routing::with_request_id;
use holdfast_telemetry::continue_trace;
use metrics::{counter, histogram};
use tonic::Code;
use tracing::{Instrument, debug, error, info_span};

use super::{Methods, status};
use crate::head::{Head, throttle, trace_parent};

pub(super) async fn instrument(State(methods): State<Methods>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let head = Head::grpc(request.headers());
    let route = methods.label(request.uri().path());
    let span = info_span!("call", request_id = head.request_id);
    if let Some(parent) = trace_parent(request.headers()) {
        continue_trace(&span, parent);
    }
    request.extensions_mut().insert(head.clone());
    // The deadline covers only the head of the response: a stream may continue after it.
    let called = with_request_id(&head.request_id, next.run(request)).instrument(span.clone());
    let answered = head.within_deadline(called).await;
    let mut response = answered.unwrap_or_else(|| status(ApiError::deadline_exceeded()).into_http());
    head.add_response_headers(response.headers_mut());
    let code = code_label(&response);
    if code == "RESOURCE_EXHAUSTED" {
        throttle().await;
    }
    span.in_scope(|| debug!(route, code, "a call is answered"));
    if code == "INTERNAL" {
        span.in_scope(|| error!(route, "a call ended with a fault of the service"));
    }
    counter!("holdfast_grpc_requests_total", "route" => route.clone(), "code" => code).increment(1);
    histogram!("holdfast_request_seconds", "route" => route).record(started.elapsed().as_secs_f64());
    response
}

/// A failed call has its status in the head of the response; without one there, the call succeeded.
fn code_label(response: &Response) -> &'static str {
    let Some(value) = response.headers().get("grpc-status") else { return "OK" };
    match Code::from_bytes(value.as_bytes()) {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
