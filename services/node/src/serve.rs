//! The node's listener: internal gRPC for gateways and peers, health and metrics for operators.

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::{IncomingStream, Listener};
use holdfast_tls::{ServerTls, Stream};
use tokio::net::TcpListener;
use tonic::Status;
use tower_http::catch_panic::CatchPanicLayer;

use crate::node::Node;

/// Renders the `/metrics` response.
pub type MetricsText = Arc<dyn Fn() -> String + Send + Sync>;
/// Returns true if the value of an `authorization` header is the operator's.
pub type IsOperator = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The listener's endpoints besides gRPC.
#[derive(Clone)]
pub struct AdminEndpoints {
    /// For `/metrics`.
    pub metrics: MetricsText,
    /// Authorizes reading metrics from addresses other than loopback.
    pub is_operator: IsOperator,
}

#[derive(Clone)]
struct EndpointState {
    not_ready: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    endpoints: AdminEndpoints,
}

/// The TLS listener.
struct TlsIncoming(holdfast_tls::Listener);

impl Listener for TlsIncoming {
    type Io = Stream;
    type Addr = holdfast_tls::PeerInfo;

    async fn accept(&mut self) -> (Stream, holdfast_tls::PeerInfo) {
        self.0.accept().await
    }

    fn local_addr(&self) -> io::Result<holdfast_tls::PeerInfo> {
        Ok(holdfast_tls::PeerInfo { address: self.0.address(), has_client_cert: true })
    }
}

/// The peer of a request.
#[derive(Clone, Copy)]
struct RemotePeer(holdfast_tls::PeerInfo);

impl Connected<IncomingStream<'_, TlsIncoming>> for RemotePeer {
    fn connect_info(stream: IncomingStream<'_, TlsIncoming>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// Serves a node until `shutdown` completes. With `tls`, connections are encrypted, and gateways and peers need a
/// certificate. Shutdown closes connections of gateways and peers; both reconnect elsewhere.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    node: &Node,
    endpoints: AdminEndpoints,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let shown = EndpointState { not_ready: Arc::new(node.not_ready()), endpoints };
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shown)
        .merge(node.routes().into_axum_router().layer(from_fn(require_client_cert)))
        .layer(CatchPanicLayer::new());
    let listener = TlsIncoming(holdfast_tls::Listener::new(listener, tls)?);
    let app = app.into_make_service_with_connect_info::<RemotePeer>();
    let serving = std::future::IntoFuture::into_future(axum::serve(listener, app));
    tokio::select! {
        served = serving => served,
        () = shutdown => Ok(()),
    }
}

/// Requires a client certificate of gateways and peers if TLS is on; probes need none.
async fn require_client_cert(
    ConnectInfo(RemotePeer(peer)): ConnectInfo<RemotePeer>,
    request: Request,
    next: Next,
) -> Response {
    if peer.has_client_cert {
        return next.run(request).await;
    }
    Status::unauthenticated("the caller shows no certificate of this cluster; give it --cluster-tls-cert-file")
        .into_http()
}

async fn ready(State(shown): State<EndpointState>) -> Response {
    match (shown.not_ready)() {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(
    State(shown): State<EndpointState>,
    ConnectInfo(RemotePeer(peer)): ConnectInfo<RemotePeer>,
    headers: HeaderMap,
) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
    // A request forwarded by a local proxy comes from elsewhere.
    let forwarded = headers.contains_key(header::FORWARDED) || headers.contains_key("x-forwarded-for");
    let local = peer.address.ip().to_canonical().is_loopback() && !forwarded;
    if local || (shown.endpoints.is_operator)(authorization) {
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        return (kind, (shown.endpoints.metrics)()).into_response();
    }
    (StatusCode::FORBIDDEN, "metrics are read on loopback, or with the operator token\n").into_response()
}
