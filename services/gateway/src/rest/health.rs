//! The endpoints of every process about itself: `/healthz`, `/readyz`, `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONTENT_TYPE, FORWARDED};
use axum::http::{Extensions, HeaderMap};
use axum::response::{IntoResponse, Response};
use holdfast_api::{ApiError, Code};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::openapi::{BaseErrors, LocalErrors, ProbeErrors, Problems, RateErrors};
use super::problem::Problem;
use crate::head::bearer;

/// Renders the text of the metrics on request.
pub(crate) type MetricsRenderer = Arc<dyn Fn() -> String + Send + Sync>;

/// Checks whether the process can serve; the error is the reason, for people. One that can may say what fails that no
/// call needs.
pub(crate) type ReadinessCheck = Arc<dyn Fn() -> Result<Option<String>, String> + Send + Sync>;

/// Checks whether the text after `Bearer ` (absent without a credential) may read the metrics.
pub(crate) type MetricsAuthorizer = Arc<dyn Fn(Option<&str>) -> bool + Send + Sync>;

/// The sources of the responses.
#[derive(Clone)]
pub(crate) struct Probes {
    /// The check behind `/readyz`.
    pub(crate) ready: ReadinessCheck,
    /// Renders the metrics in the Prometheus text format.
    pub(crate) metrics: MetricsRenderer,
    /// Decides which callers may read the metrics from another machine.
    pub(crate) may_read_metrics: MetricsAuthorizer,
}

impl Probes {
    /// Returns the probes of an idle process, for descriptions.
    pub(crate) fn none() -> Self {
        Self { ready: Arc::new(|| Ok(None)), metrics: Arc::new(String::new), may_read_metrics: Arc::new(|_| false) }
    }
}

/// Returns the routes of probes.
pub(crate) fn probe_routes() -> OpenApiRouter<Probes> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Returns the route of the metrics. The peer's address is in the extension `ConnectInfo<SocketAddr>`; without it no
/// peer counts as local.
pub(crate) fn metrics_route() -> OpenApiRouter<Probes> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Check whether the process is up
#[utoipa::path(get, path = "/healthz", tag = "Description", operation_id = "healthz", security(()),
    responses((status = 200, description = "It is.", body = String, content_type = "text/plain"),
        Problems<(BaseErrors,)>))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Check whether the process can serve
#[utoipa::path(get, path = "/readyz", tag = "Description", operation_id = "readyz", security(()),
    responses((status = 200, description = "It can.", body = String, content_type = "text/plain"),
        Problems<(BaseErrors, ProbeErrors)>))]
async fn readyz(State(probes): State<Probes>) -> Response {
    match (probes.ready)() {
        Ok(None) => "ready\n".into_response(),
        Ok(Some(failing)) => format!("ready, although {failing}\n").into_response(),
        Err(reason) => Problem::from(ApiError::new(Code::Unavailable, format!("not ready: {reason}"))).into_response(),
    }
}

/// The metrics of the process, for Prometheus
///
/// On this machine without a credential, from elsewhere with the operator token.
#[utoipa::path(get, path = "/metrics", tag = "Description", operation_id = "metrics", security((), ("operator" = [])),
    responses((status = 200, description = "The text format of Prometheus.", body = String,
        content_type = "text/plain"), Problems<(BaseErrors, LocalErrors, RateErrors)>))]
async fn metrics(State(probes): State<Probes>, request: Request) -> Response {
    if !is_local(request.extensions(), request.headers()) {
        match bearer(request.headers()) {
            Ok(bearer) if (probes.may_read_metrics)(bearer) => {}
            Ok(_) => {
                let detail = "/metrics: from another machine the operator token is needed";
                return Problem::from(ApiError::unauthenticated(detail)).into_response();
            }
            Err(error) => return Problem::from(error).into_response(),
        }
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (probes.metrics)()).into_response()
}

/// Returns whether the caller itself is on this machine: a request that a local proxy forwards is not local.
fn is_local(extensions: &Extensions, headers: &HeaderMap) -> bool {
    let forwarded = headers.contains_key(FORWARDED) || headers.contains_key("x-forwarded-for");
    let peer = extensions.get::<ConnectInfo<SocketAddr>>();
    !forwarded && peer.is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt;

    use super::*;

    fn probes(ready: Result<Option<String>, String>) -> Probes {
        Probes {
            ready: Arc::new(move || ready.clone()),
            metrics: Arc::new(|| "holdfast_up 1\n".to_owned()),
            may_read_metrics: Arc::new(|bearer| bearer == Some("operator")),
        }
    }

    async fn get(probes: Probes, path: &str, peer: Option<&str>, headers: &[(&str, &str)]) -> (u16, String) {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
        }
        let (routes, _) = probe_routes().merge(metrics_route()).with_state(probes).split_for_parts();
        let response = routes.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_process_that_is_not_ready_is_up_and_says_why() {
        let down = probes(Err("no contact with accounts".to_owned()));
        assert_eq!(get(down.clone(), "/healthz", None, &[]).await.0, 200);
        let (status, body) = get(down, "/readyz", None, &[]).await;
        assert_eq!(status, 503);
        assert!(body.contains("no contact with accounts"), "{body}");
        assert_eq!(get(probes(Ok(None)), "/readyz", None, &[]).await, (200, "ready\n".to_owned()));
    }

    #[tokio::test]
    async fn a_process_is_ready_without_a_task_that_no_call_needs_and_names_it() {
        let failing = probes(Ok(Some("task metrics has failed: panic".to_owned())));
        let body = "ready, although task metrics has failed: panic\n".to_owned();
        assert_eq!(get(failing, "/readyz", None, &[]).await, (200, body));
    }

    #[tokio::test]
    async fn metrics_are_for_this_machine_and_for_the_operator() {
        let figures = (200, "holdfast_up 1\n".to_owned());
        for peer in ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert_eq!(get(probes(Ok(None)), "/metrics", Some(peer), &[]).await, figures);
        }
        let far = Some("10.1.2.3:5");
        assert_eq!(get(probes(Ok(None)), "/metrics", far, &[]).await.0, 401);
        assert_eq!(get(probes(Ok(None)), "/metrics", None, &[]).await.0, 401);
        assert_eq!(get(probes(Ok(None)), "/metrics", far, &[("authorization", "Bearer guess")]).await.0, 401);
        assert_eq!(get(probes(Ok(None)), "/metrics", far, &[("authorization", "Bearer operator")]).await, figures);
        let proxied = [("x-forwarded-for", "10.1.2.3")];
        assert_eq!(get(probes(Ok(None)), "/metrics", Some("127.0.0.1:5"), &proxied).await.0, 401);
    }
}
