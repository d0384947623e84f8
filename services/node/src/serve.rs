//! The node's listener: internal gRPC for gateways and peers, health and metrics for operators.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tower_http::catch_panic::CatchPanicLayer;

use crate::node::Node;

/// Renders what `/metrics` answers.
pub type MetricsText = Arc<dyn Fn() -> String + Send + Sync>;
/// Whether the value of an `authorization` header is the operator's.
pub type IsOperator = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What the listener shows besides gRPC.
#[derive(Clone)]
pub struct Probes {
    /// For `/metrics`.
    pub metrics: MetricsText,
    /// Who may read metrics from elsewhere than loopback.
    pub is_operator: IsOperator,
}

#[derive(Clone)]
struct Shown {
    not_ready: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    probes: Probes,
}

/// Serves a node until `shutdown` ends. Connections of gateways and peers end with it: both come back elsewhere.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    node: &Node,
    probes: Probes,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let shown = Shown { not_ready: Arc::new(node.not_ready()), probes };
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shown)
        .merge(node.routes().into_axum_router())
        .layer(CatchPanicLayer::new());
    let listener = listener.tap_io(|stream| {
        // Small frames must not wait for one another; without it a node is slow, not wrong.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "can't switch off Nagle's algorithm");
        }
    });
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let serving = std::future::IntoFuture::into_future(axum::serve(listener, app));
    tokio::select! {
        served = serving => served,
        () = shutdown => Ok(()),
    }
}

async fn ready(State(shown): State<Shown>) -> Response {
    match (shown.not_ready)() {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(
    State(shown): State<Shown>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
    // What a proxy on this machine forwards comes from somewhere else.
    let forwarded = headers.contains_key(header::FORWARDED) || headers.contains_key("x-forwarded-for");
    let local = peer.ip().to_canonical().is_loopback() && !forwarded;
    if local || (shown.probes.is_operator)(authorization) {
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        return (kind, (shown.probes.metrics)()).into_response();
    }
    (StatusCode::FORBIDDEN, "metrics are read on loopback, or with the operator token\n").into_response()
}
