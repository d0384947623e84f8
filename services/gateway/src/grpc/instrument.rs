//! What concerns every gRPC response: labels of the metrics, the statuses of the library, and the log.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName};
use axum::response::Response;
use holdfast_api::ApiError;
use metrics::counter;
use tonic::Code;
use tracing::{debug, error};

use super::{Methods, status};
use crate::call_layer::{Protocol, Verdict};
use crate::call_metrics::CallMetrics;
use crate::head::Head;

static STATUS_HEADER: HeaderName = HeaderName::from_static("grpc-status");

/// gRPC.
pub(super) struct GrpcProtocol {
    methods: Methods,
    metrics: CallMetrics<Code>,
}

impl GrpcProtocol {
    pub(super) fn new(methods: Methods) -> Self {
        let metrics = CallMetrics::new(|route, code: Code| {
            let route = route.to_owned();
            counter!("holdfast_grpc_requests_total", "route" => route, "code" => code_label(code))
        });
        Self { methods, metrics }
    }
}

impl Protocol for GrpcProtocol {
    type Route = Arc<str>;
    type Code = Code;

    fn head(&self, headers: &HeaderMap) -> Head {
        Head::grpc(headers)
    }

    fn route(&self, request: &Request) -> Arc<str> {
        self.methods.label(request.uri().path())
    }

    fn error_response(&self, error: ApiError) -> Response {
        status(error).into_http()
    }

    fn finish(&self, response: Response) -> Response {
        super::status::map_library_status(response)
    }

    /// A failed call has its status in the head of the response; without one there, the call succeeded.
    fn code(&self, response: &Response) -> Code {
        response.headers().get(&STATUS_HEADER).map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
    }

    fn verdict(&self, code: Code) -> Verdict {
        match code {
            Code::Internal => Verdict::Fault,
            Code::ResourceExhausted => Verdict::RateLimited,
            _ => Verdict::Ordinary,
        }
    }

    fn log(&self, route: &Arc<str>, code: Code) {
        debug!(route = &**route, code = code_label(code), "call completed");
        if self.verdict(code) == Verdict::Fault {
            error!(route = &**route, "call failed with an internal error");
        }
    }

    fn record(&self, route: &Arc<str>, code: Code, elapsed: Duration) {
        self.metrics.record(route, code, elapsed);
    }
}

fn code_label(code: Code) -> &'static str {
    match code {
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
