//! The layer around every route of REST and gRPC: request id, deadline, panics, common headers, log, and metrics.
//!
//! It is one layer, because each layer of a router clones the service behind it and boxes its future for every call.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request};
use axum::http::HeaderMap;
use axum::response::Response;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::ApiError;
use holdfast_routing::with_request_id;
use holdfast_telemetry::{continue_trace, uses_call_spans};
use tower::{Layer, Service};
use tracing::{Instrument, Span, info_span};

use crate::head::{Head, throttle, trace_parent};

/// How a protocol reads the head of a call, and presents what concerns every response.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// The labels of a call that are known before it runs.
    type Route: Send + 'static;
    /// The outcome of a call, as the metrics show it.
    type Code: Copy + Send + 'static;

    /// Reads the head of a call.
    fn head(&self, headers: &HeaderMap) -> Head;

    /// Returns the labels of a call.
    fn route(&self, request: &Request) -> Self::Route;

    /// Returns the response for an error.
    fn error_response(&self, error: ApiError) -> Response;

    /// Changes what every response needs changed.
    fn finish(&self, response: Response) -> Response;

    /// Returns the outcome that a response shows.
    fn code(&self, response: &Response) -> Self::Code;

    /// Returns what the outcome means for this layer.
    fn verdict(&self, code: Self::Code) -> Verdict;

    /// Logs a call.
    fn log(&self, route: &Self::Route, code: Self::Code);

    /// Counts a call that took this long, a wait for a lock included.
    fn record(&self, route: &Self::Route, code: Self::Code, elapsed: Duration);
}

/// What an outcome means for the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A fault of the service: it is always logged with the request id.
    Fault,
    /// The caller makes too many calls: its response is delayed.
    RateLimited,
    /// Anything else.
    Ordinary,
}

/// Adds what concerns every call of a protocol to routes.
pub(crate) struct CallLayer<P>(Arc<P>);

/// A route with the layer around it.
pub(crate) struct CallService<P, S> {
    protocol: Arc<P>,
    inner: S,
}

impl<P> CallLayer<P> {
    /// The layer of a protocol.
    pub(crate) fn new(protocol: P) -> Self {
        Self(Arc::new(protocol))
    }
}

impl<P> Clone for CallLayer<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P, S: Clone> Clone for CallService<P, S> {
    fn clone(&self) -> Self {
        Self { protocol: Arc::clone(&self.protocol), inner: self.inner.clone() }
    }
}

impl<P, S> Layer<S> for CallLayer<P> {
    type Service = CallService<P, S>;

    fn layer(&self, inner: S) -> Self::Service {
        CallService { protocol: Arc::clone(&self.0), inner }
    }
}

impl<P, S> Service<Request> for CallService<P, S>
where
    P: Protocol,
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let started = Instant::now();
        let protocol = Arc::clone(&self.protocol);
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
        let head = Arc::new(protocol.head(request.headers()).with_peer(peer));
        let route = protocol.route(&request);
        let span = call_span(&head, request.headers());
        request.extensions_mut().insert(Arc::clone(&head));
        let called = AssertUnwindSafe(self.inner.call(request)).catch_unwind();
        let called = with_request_id(Arc::clone(&head.request_id), called).instrument(span.clone());
        Box::pin(async move {
            // The deadline covers only the head of the response: a stream may continue after it.
            let response = match head.within_deadline(pin!(called)).await {
                Some(Ok(Ok(response))) => response,
                // The panic message is logged where it occurs, and is not part of the response.
                Some(Err(_)) => protocol.error_response(fault()),
                None => protocol.error_response(ApiError::deadline_exceeded()),
            };
            let mut response = protocol.finish(response);
            head.add_response_headers(response.headers_mut());
            let code = protocol.code(&response);
            let verdict = protocol.verdict(code);
            if verdict == Verdict::RateLimited {
                throttle().await;
            }
            let span = if verdict == Verdict::Fault && span.is_none() { new_span(&head) } else { span };
            span.in_scope(|| protocol.log(&route, code));
            protocol.record(&route, code, started.elapsed());
            Ok(response)
        })
    }
}

/// The error of a call that panicked.
fn fault() -> ApiError {
    ApiError::internal("a fault of the service; the request id names it in the log")
}

/// Creates the span of a call, where its lines are logged in detail or traces are exported. Elsewhere a call logs only
/// its own fault, and a span would cost more than all the rest of this layer.
fn call_span(head: &Head, headers: &HeaderMap) -> Span {
    if !uses_call_spans() {
        return Span::none();
    }
    let span = new_span(head);
    if let Some(parent) = trace_parent(headers) {
        continue_trace(&span, parent);
    }
    span
}

fn new_span(head: &Head) -> Span {
    info_span!("call", request_id = &*head.request_id)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// A protocol whose outcomes are statuses, and which counts what it logs and records.
    #[derive(Default)]
    struct TestProtocol {
        logged: parking_lot::Mutex<Vec<(String, u16)>>,
        recorded: parking_lot::Mutex<Vec<u16>>,
    }

    impl Protocol for TestProtocol {
        type Route = String;
        type Code = u16;

        fn head(&self, headers: &HeaderMap) -> Head {
            Head::rest(headers)
        }

        fn route(&self, request: &Request) -> String {
            request.uri().path().to_owned()
        }

        fn error_response(&self, error: ApiError) -> Response {
            Response::builder().status(error.code.http_status()).body(Body::empty()).unwrap()
        }

        fn finish(&self, response: Response) -> Response {
            response
        }

        fn code(&self, response: &Response) -> u16 {
            response.status().as_u16()
        }

        fn verdict(&self, code: u16) -> Verdict {
            if code == 500 { Verdict::Fault } else { Verdict::Ordinary }
        }

        fn log(&self, route: &String, code: u16) {
            self.logged.lock().push((route.clone(), code));
        }

        fn record(&self, _: &String, code: u16, _: Duration) {
            self.recorded.lock().push(code);
        }
    }

    async fn answer(request: Request) -> Result<Response, Infallible> {
        let head = Arc::clone(request.extensions().get::<Arc<Head>>().unwrap());
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/fault" => panic!("secret"),
            "/hang" => std::future::pending().await,
            _ => Ok(Response::new(Body::from(head.request_id.to_string()))),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_panics_and_deadlines_are_answered_logged_and_counted() {
        let layer = CallLayer::new(TestProtocol::default());
        let service = layer.layer(service_fn(answer));
        for (path, status) in [("/fine", 200), ("/fault", 500), ("/hang", 504)] {
            let request = Request::builder().uri(path).header("holdfast-timeout-ms", "1");
            let request = request.header("holdfast-request-id", "r-1").body(Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()["holdfast-request-id"], "r-1");
        }
        let expected: [(String, u16); 3] =
            [("/fine".to_owned(), 200), ("/fault".to_owned(), 500), ("/hang".to_owned(), 504)];
        assert_eq!(*layer.0.logged.lock(), expected);
        assert_eq!(*layer.0.recorded.lock(), [200, 500, 504]);
    }

    #[test]
    fn a_call_has_a_span_only_where_something_may_use_it() {
        // Nothing logs here.
        let head = Head::rest(&HeaderMap::new());
        assert!(call_span(&head, &HeaderMap::new()).is_none());
    }
}
