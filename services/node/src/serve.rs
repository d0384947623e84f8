//! The node's listener: frames for gateways and peers, gRPC, health and metrics for operators.

use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use futures::{Stream, TryFutureExt, stream};
use holdfast_cluster::ShardMap;
use holdfast_rpc::{ByteStream, Incoming};
use holdfast_tls::{ConnectionActivity, Listener, PeerInfo, PortConnections, PortLimits, ServerTls};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::Status;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;

use crate::busy_body::BusyBody;
use crate::node::Node;

/// How often the addresses of nodes are resolved: a node may return with another one.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);

/// Bytes of the head of an HTTP/1.1 request. A head is read again from its start with each part that arrives.
const MAX_HEAD_BYTES: usize = 64 * 1_024;

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
    failing_task: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    down_shards: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    endpoints: AdminEndpoints,
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
    let (not_ready, failing_task) = (Arc::new(node.not_ready()), Arc::new(node.failing_task()));
    let shown = EndpointState { not_ready, failing_task, down_shards: Arc::new(node.down_shards()), endpoints };
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shown)
        .merge(grpc_routes(node).layer(from_fn(require_client_cert)))
        .layer(CatchPanicLayer::new());
    let port = PortConnections::new(PortLimits::default());
    let expecting = expect_nodes(node.subscribe_map(), Arc::clone(&port));
    let listener = Listener::new(listener, tls, port)?;
    let accepting = stream::unfold(listener, |mut listener| async {
        let (stream, peer, counted) = listener.accept().await;
        let (has_cert, peer) = (peer.has_client_cert, (peer, counted.activity()));
        Some((Incoming { stream: Box::new(stream), peer, has_cert, counted: Some(counted) }, listener))
    });
    let serving = node.acceptor().serve(accepting, move |stream, (peer, activity): (PeerInfo, ConnectionActivity)| {
        serve_http(app.clone().layer(Extension(ConnectInfo(peer))), stream, activity)
    });
    tokio::select! {
        () = serving => Ok(()),
        () = expecting => Ok(()),
        () = shutdown => Ok(()),
    }
}

/// Reserves handshakes for the nodes of the config, including nodes that have not connected since this node's start.
/// Never returns.
async fn expect_nodes(mut map: watch::Receiver<Arc<ShardMap>>, port: Arc<PortConnections>) {
    loop {
        let current = Arc::clone(&map.borrow_and_update());
        for node in &current.config().nodes {
            // A name that cannot be resolved yet is tried again.
            if let Ok(found) = lookup_host(&node.address).await {
                port.expect_processes(found.map(|address| address.ip()));
            }
        }
        tokio::select! {
            () = sleep(RESOLVE_INTERVAL) => {}
            changed = map.changed() => if changed.is_err() {
                // The node has stopped.
                pending::<()>().await;
            },
        }
    }
}

/// Serves gateways and peers over these connections, without health and metrics, and closes all when it is dropped.
pub async fn serve_connections(node: &Node, connections: impl Stream<Item = Incoming<()>> + Send) {
    let app = grpc_routes(node);
    node.acceptor().serve(connections, move |stream, ()| serve_http(app.clone(), stream, Default::default())).await;
}

async fn serve_http(app: Router, stream: ByteStream, activity: ConnectionActivity) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (busy, answering) = (activity.begin(), app.clone().oneshot(request));
        answering.map_ok(move |answer: Response| answer.map(|body| BusyBody::new(body, busy)))
    });
    let mut serving = Builder::new(TokioExecutor::new());
    serving.http1().max_buf_size(MAX_HEAD_BYTES);
    if let Err(error) = serving.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "HTTP connection failed");
    }
}

fn grpc_routes(node: &Node) -> Router {
    let routes = node.routes().into_axum_router();
    OLD_CALLS.into_iter().fold(routes, |routes, path| routes.route(path, any(reject_old_release)))
}

/// What releases of wire version 1 called over HTTP/2.
const OLD_CALLS: [&str; 2] = ["/holdfast.internal.NodeService/Connect", "/holdfast.internal.RaftService/Exchange"];

/// Tells a process of an earlier release why it gets no connection.
async fn reject_old_release() -> Response {
    let release = env!("CARGO_PKG_VERSION");
    let reason = format!(
        "the caller runs an earlier release, and this node release {release}, which speaks another internal protocol: \
         start the caller with release {release}"
    );
    Status::failed_precondition(reason).into_http()
}

/// Requires a client certificate of gateways and peers if TLS is on; probes need none.
async fn require_client_cert(ConnectInfo(peer): ConnectInfo<PeerInfo>, request: Request, next: Next) -> Response {
    if peer.has_client_cert {
        return next.run(request).await;
    }
    Status::unauthenticated("the caller shows no certificate of this cluster; give it --cluster-tls-cert-file")
        .into_http()
}

async fn ready(State(shown): State<EndpointState>) -> Response {
    match (shown.not_ready)() {
        None => ready_text(&(shown.down_shards)(), (shown.failing_task)()).into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

fn ready_text(down: &[String], failing: Option<String>) -> String {
    let without = match down {
        [] => String::new(),
        down => format!(", without shards that have failed on every node: {}", down.join(", ")),
    };
    let although = failing.map(|failing| format!(", although {failing}")).unwrap_or_default();
    format!("ready{without}{although}\n")
}

async fn metrics(
    State(shown): State<EndpointState>,
    ConnectInfo(peer): ConnectInfo<PeerInfo>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_serves_names_what_fails() {
        assert_eq!(ready_text(&[], None), "ready\n");
        let down = ["locks_01".to_owned(), "locks_02".to_owned()];
        let without = "ready, without shards that have failed on every node: locks_01, locks_02";
        assert_eq!(ready_text(&down, None), format!("{without}\n"));
        let failing = || Some("task config has failed: panic".to_owned());
        assert_eq!(ready_text(&[], failing()), "ready, although task config has failed: panic\n");
        assert_eq!(ready_text(&down, failing()), format!("{without}, although task config has failed: panic\n"));
    }
}
