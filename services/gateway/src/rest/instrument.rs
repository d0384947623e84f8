//! What concerns every REST response: labels of the metrics, common headers, and the log.

use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_api::ApiError;
use metrics::counter;
use tracing::{debug, error};

use super::problem::Problem;
use crate::call_layer::{Protocol, Verdict};
use crate::call_metrics::CallMetrics;
use crate::head::Head;

/// REST.
pub(super) struct RestProtocol {
    /// By method and status.
    metrics: CallMetrics<(&'static str, StatusCode)>,
}

/// The route of a REST call, and its method.
pub(super) struct RestRoute {
    /// Only templates of routes become labels: the number of paths that callers can request is unlimited.
    template: Option<MatchedPath>,
    method: &'static str,
}

impl RestProtocol {
    pub(super) fn new() -> Self {
        let metrics = CallMetrics::new(|route, (method, status): (&'static str, StatusCode)| {
            let (route, code) = (route.to_owned(), status.as_str().to_owned());
            counter!("holdfast_http_requests_total", "route" => route, "method" => method, "code" => code)
        });
        Self { metrics }
    }
}

impl RestRoute {
    fn label(&self) -> &str {
        self.template.as_ref().map_or("unmatched", MatchedPath::as_str)
    }
}

impl Protocol for RestProtocol {
    type Route = RestRoute;
    type Code = StatusCode;

    fn head(&self, headers: &HeaderMap) -> Head {
        Head::rest(headers)
    }

    fn route(&self, request: &Request) -> RestRoute {
        let template = request.extensions().get::<MatchedPath>().cloned();
        RestRoute { template, method: method_label(request.method()) }
    }

    fn error_response(&self, error: ApiError) -> Response {
        Problem::from(error).into_response()
    }

    fn finish(&self, mut response: Response) -> Response {
        // Responses describe the present, and some contain a secret.
        response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }

    fn code(&self, response: &Response) -> StatusCode {
        response.status()
    }

    fn verdict(&self, code: StatusCode) -> Verdict {
        match code {
            StatusCode::INTERNAL_SERVER_ERROR => Verdict::Fault,
            StatusCode::TOO_MANY_REQUESTS => Verdict::RateLimited,
            _ => Verdict::Ordinary,
        }
    }

    fn log(&self, route: &RestRoute, code: StatusCode) {
        let (method, label, status) = (route.method, route.label(), code.as_u16());
        if self.verdict(code) == Verdict::Fault {
            error!(method, route = label, "call failed with an internal error");
        }
        debug!(method, route = label, status, "call completed");
    }

    fn record(&self, route: &RestRoute, code: StatusCode, elapsed: Duration) {
        self.metrics.record(route.label(), (route.method, code), elapsed);
    }
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
