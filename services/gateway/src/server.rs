//! One listener for every frontend: REST over HTTP/1.1 and HTTP/2, gRPC over HTTP/2, health and metrics.
//!
//! Every resource that a peer can occupy is bounded: connections, streams of one connection, sizes of heads, and the
//! time until a complete request.

mod call_lane;
mod counted_body;
mod paced_reads;
mod tracked_body;

use std::convert::Infallible;
use std::future::Future;
use std::iter::once;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use axum::routing::future::RouteFuture;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryFutureExt};
use holdfast_backend::Service;
use holdfast_supervise::{SharedGroup, TaskSet, spawn_temporary};
use holdfast_tls::{ServerTls, accept_one};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::Service as _;
use tracing::{debug, info, warn};

use crate::connection_limiter::{ActivityGuard, ConnectionLimiter, ConnectionPermit};
use crate::grpc::DescriptorsError;
use crate::rest::health::{MetricsRenderer, Probes};
use crate::{dlocks, grpc, public_pages, rest};
use call_lane::CallLane;
use counted_body::CountedBody;
use paced_reads::PacedReads;
use tracked_body::{Refusable, track};

/// Maximum concurrent calls on one HTTP/2 connection.
const MAX_STREAMS: u32 = 1_000;
/// Maximum bytes of the head of a request.
const MAX_HEAD_BYTES: u32 = 32 * 1_024;
/// How long a new connection may take until its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an HTTP/1.1 connection may take for the head of its next request.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
/// How often an idle HTTP/2 peer is pinged, and how long it may take to reply.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long calls in flight may take to end when the process stops: a call's default deadline and a little.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(12);
/// How long HTTP/1.1 connections of a stopping process accept one more call, whose response announces the end. An idle
/// connection could only be closed without notice, and a call in transit at that moment would be lost.
const LAST_CALL_GRACE: Duration = Duration::from_secs(1);
/// How long a connection without calls in flight may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an evicted connection may take to end.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(250);
/// How often the gRPC health service adopts the state of `/readyz`.
const READINESS_INTERVAL: Duration = Duration::from_millis(500);

/// The services behind the listener.
#[derive(Clone)]
pub(crate) struct ServerOptions {
    /// The operations.
    pub(crate) service: Service,
    /// Whether dlocks clients may name their account in metadata instead of sending an API key.
    pub(crate) dlocks_account_metadata: bool,
    /// Renders the response of `/metrics`.
    pub(crate) metrics: MetricsRenderer,
    /// Encrypts every connection, if there is a certificate.
    pub(crate) tls: Option<ServerTls>,
    /// Connections at a time. Beyond that, idle ones are evicted.
    pub(crate) max_connections: usize,
}

/// Serves every frontend on one listener until `shutdown` ends, then waits for calls in flight, and returns.
///
/// # Errors
/// When the built-in descriptors are unreadable.
pub(crate) async fn serve(
    listener: TcpListener,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DescriptorsError> {
    describe_metrics();
    let service = options.service.clone();
    let (reporter, health) = tonic_health::server::health_reporter();
    let dlocks = dlocks::server(options.service.clone(), options.dlocks_account_metadata);
    let grpc = grpc::routes(&options.service, Routes::new(dlocks), health)?;
    let rest = rest::with_middleware(rest::routes(options.service.clone(), probes(&options)));
    let stopping = CancellationToken::new();
    let tasks = TaskTracker::new();
    // Published once before the first call, so that no service is unknown, and none is reported as serving too early.
    publish_status(&reporter, options.service.ready().is_ok()).await;
    let (of_service, until) = (options.service.clone(), stopping.clone());
    let health_tasks = TaskSet::in_background();
    health_tasks
        .spawn_until_done("health", move || run_health_reporter(reporter.clone(), of_service.clone(), until.clone()));
    let limited_grpc = public_pages::limit_methods(grpc.clone(), service.clone());
    let front = ProtocolMux { rest, grpc, limited_grpc, tls: options.tls, service };
    serve_mux(listener, front, options.max_connections, ServerTasks { tasks, stopping }, shutdown).await;
    Ok(())
}

/// Serves routes on a listener of their own, as [`serve`] does.
pub(crate) async fn serve_routes(
    listener: TcpListener,
    tls: Option<ServerTls>,
    routes: Router,
    service: Service,
    max_connections: usize,
    shutdown: impl Future<Output = ()>,
) {
    let front = ProtocolMux { rest: routes.clone(), grpc: routes.clone(), limited_grpc: routes, tls, service };
    serve_mux(listener, front, max_connections, ServerTasks::default(), shutdown).await;
}

/// The tasks behind a listener, and the tokens that end them.
#[derive(Default)]
struct ServerTasks {
    tasks: TaskTracker,
    stopping: CancellationToken,
}

async fn serve_mux(
    listener: TcpListener,
    front: ProtocolMux,
    max_connections: usize,
    ServerTasks { tasks, stopping }: ServerTasks,
    shutdown: impl Future<Output = ()>,
) {
    let service = front.service.clone();
    let limiter = ConnectionLimiter::new(max_connections, service.account_connections());
    accept(&listener, front, &limiter, &tasks, &stopping, shutdown).await;
    // Closed first, so that new callers connect elsewhere while calls in flight finish.
    drop(listener);
    // Streams without an end of their own would keep their connections until they are cut off.
    service.end_streams();
    stopping.cancel();
    tasks.close();
    if timeout(LAST_CALL_GRACE + DRAIN_TIMEOUT + CLOSE_TIMEOUT, tasks.wait()).await.is_err() {
        warn!(connections = tasks.len(), "connections were cut off: they did not end in time");
    }
}

fn describe_metrics() {
    holdfast_backend::describe_metrics();
    describe_counter!("holdfast_http_requests_total", "Calls over REST, by route, method and HTTP status.");
    describe_counter!("holdfast_grpc_requests_total", "Calls over gRPC, by method and status.");
    describe_histogram!("holdfast_request_seconds", Unit::Seconds, "Time from the head of a call to its answer's.");
    describe_gauge!("holdfast_connections", "Connections that are open.");
    describe_counter!("holdfast_connections_evicted_total", "Connections closed to admit new ones.");
    counter!("holdfast_connections_evicted_total").increment(0);
    describe_counter!("holdfast_connections_stalled_total", "Connections that ended because the peer read nothing.");
    counter!("holdfast_connections_stalled_total").increment(0);
}

fn probes(options: &ServerOptions) -> Probes {
    let (for_ready, for_metrics) = (options.service.clone(), options.service.clone());
    Probes {
        ready: Arc::new(move || for_ready.ready().map(|()| for_ready.failing_task())),
        metrics: Arc::clone(&options.metrics),
        may_read_metrics: Arc::new(move |bearer| for_metrics.is_operator_token(bearer)),
    }
}

async fn accept(
    listener: &TcpListener,
    front: ProtocolMux,
    limiter: &Arc<ConnectionLimiter>,
    tasks: &TaskTracker,
    stopping: &CancellationToken,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => return,
            accepted = accept_one(listener) => accepted,
        };
        let place = tokio::select! {
            biased;
            () = &mut shutdown => return,
            place = limiter.acquire(tasks) => place,
        };
        let group = place.group();
        let serving = group.run(serve_connection(stream, peer, front.clone(), place, stopping.clone()));
        spawn_temporary("client_connection", tasks.track_future(serving));
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    front: ProtocolMux,
    place: ConnectionPermit,
    stopping: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "answers may be delayed: TCP_NODELAY cannot be set");
    }
    match front.tls.clone() {
        None => serve_http(stream, peer, front, place, stopping).await,
        // Boxed, so that connections without TLS have no room for it.
        Some(tls) => Box::pin(serve_tls(tls, stream, peer, front, place, stopping)).await,
    }
}

async fn serve_tls(
    tls: ServerTls,
    stream: TcpStream,
    peer: SocketAddr,
    front: ProtocolMux,
    place: ConnectionPermit,
    stopping: CancellationToken,
) {
    let service = front.service.clone();
    let admit = |must_wait| service.admit_handshake(peer.ip(), must_wait);
    let accepted = tokio::select! {
        accepted = tls.accept(stream, admit) => accepted,
        () = stopping.cancelled() => return,
        () = place.evicted() => return,
    };
    match accepted {
        Ok(stream) => serve_http(stream, peer, front, place, stopping).await,
        Err(error) => debug!(%peer, %error, "the TLS handshake with a peer failed"),
    }
}

async fn serve_http<S>(
    stream: S,
    peer: SocketAddr,
    front: ProtocolMux,
    place: ConnectionPermit,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let spoken = Arc::<OnceLock<Version>>::default();
    let (speaks, taken, ending) = (Arc::clone(&spoken), place.clone(), stopping.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let version = *speaks.get_or_init(|| request.version());
        let (activity, ending, refusable) = (taken.start_activity(), ending.clone(), Refusable::of(&request));
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(activity.clone());
        // Not an `async` block, which would have room for the call twice.
        front.dispatch(request, &activity).map_ok(move |answer| {
            let answer = track(answer, version, &activity, refusable);
            if activity.is_refused() {
                activity.end_connection();
                return with_connection_close(answer, version);
            }
            if ending.is_cancelled() { with_connection_close(answer, version) } else { answer }
        })
    });
    let (builder, stream) = (builder(place.group()), TokioIo::new(PacedReads::new(stream, Arc::clone(&spoken))));
    let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
    // Polled only after it was woken: a connection is polled for every message, and this is about its end.
    let mut causes: FuturesUnordered<_> = once(next_end_cause(&place, &stopping, &spoken)).collect();
    let cause = tokio::select! {
        biased;
        ended = connection.as_mut() => return log_connection_end(peer, ended),
        Some(cause) = causes.next() => cause,
    };
    let close_within = match cause {
        EndCause::Stopping => DRAIN_TIMEOUT,
        EndCause::Evicted => EVICTION_TIMEOUT,
        EndCause::Stalled => return debug!(%peer, "a connection was cut off: its peer read nothing for too long"),
        EndCause::NoRequest => CLOSE_TIMEOUT,
    };
    if stopping.is_cancelled() && spoken.get() != Some(&Version::HTTP_2) {
        tokio::select! {
            ended = connection.as_mut() => return log_connection_end(peer, ended),
            () = sleep(LAST_CALL_GRACE) => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    match timeout(close_within, connection).await {
        Ok(ended) => log_connection_end(peer, ended),
        Err(_) => debug!(%peer, "a connection was cut off: it did not end in time"),
    }
}

/// Why a connection is to end whose peer has not ended it.
enum EndCause {
    /// The process stops.
    Stopping,
    /// Another connection needs its permit, or its account has too many.
    Evicted,
    /// Its peer reads nothing.
    Stalled,
    /// Its peer sent no request.
    NoRequest,
}

/// Waits until a connection is to end.
async fn next_end_cause(
    place: &ConnectionPermit,
    stopping: &CancellationToken,
    spoken: &OnceLock<Version>,
) -> EndCause {
    let first_request_by = Instant::now() + FIRST_REQUEST_TIMEOUT;
    tokio::select! {
        () = stopping.cancelled() => EndCause::Stopping,
        () = place.evicted() => EndCause::Evicted,
        () = place.stalled() => EndCause::Stalled,
        () = first_request_timeout(first_request_by, spoken) => EndCause::NoRequest,
    }
}

/// Returns if no request arrived in time; never returns if one did.
async fn first_request_timeout(deadline: Instant, spoken: &OnceLock<Version>) {
    tokio::time::sleep_until(deadline).await;
    if spoken.get().is_some() {
        std::future::pending::<()>().await;
    }
}

/// Announces the end of the connection in this response, for protocols without another way.
fn with_connection_close(mut answer: Response<Body>, version: Version) -> Response<Body> {
    // A WebSocket connection is no longer HTTP, and announces its end there.
    if version != Version::HTTP_2 && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn log_connection_end(peer: SocketAddr, ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        debug!(%peer, %error, "a connection ended badly");
    }
}

fn builder(group: SharedGroup) -> Builder<CallLane> {
    let mut builder = Builder::new(CallLane::new(group));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES as usize * 2);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Dispatches calls to REST or gRPC. Clones are cheap.
#[derive(Clone)]
struct ProtocolMux {
    rest: Router,
    grpc: Router,
    /// The same for methods that are limited by address.
    limited_grpc: Router,
    tls: Option<ServerTls>,
    service: Service,
}

impl ProtocolMux {
    fn dispatch(&self, request: Request<Incoming>, activity: &ActivityGuard) -> RouteFuture<Infallible> {
        let routes = match is_grpc(request.version(), request.headers()) {
            true if public_pages::is_limited_method(request.uri().path()) => &self.limited_grpc,
            true => &self.grpc,
            false => &self.rest,
        };
        // The messages of a session's stream are counted one by one, as long as they are needed.
        let is_counted = !request.body().is_end_stream() && request.uri().path() != grpc::SESSION_STREAM;
        let request = request
            .map(|body| if is_counted { Body::new(CountedBody::new(body, activity.clone())) } else { Body::new(body) });
        // A router is always ready.
        routes.clone().call(request)
    }
}

/// Identifies gRPC by its content type, so that the paths of its methods need not differ from those of REST routes.
fn is_grpc(version: Version, headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else { return false };
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    version == Version::HTTP_2 && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Keeps the standard health service in step with readiness.
async fn run_health_reporter(reporter: HealthReporter, service: Service, stopping: CancellationToken) {
    let mut ticks = interval(READINESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let stop = tokio::select! {
            () = stopping.cancelled() => true,
            _ = ticks.tick() => false,
        };
        publish_status(&reporter, !stop && service.ready().is_ok()).await;
        if stop {
            info!("no new calls are taken; those in flight are answered");
            return;
        }
    }
}

async fn publish_status(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in HEALTH_SERVICES {
        reporter.set_service_status(name, status).await;
    }
}

/// The names in the health service: the process as a whole, and each service of the API.
const HEALTH_SERVICES: [&str; 6] = [
    "",
    "holdfast.v1.AccountsService",
    "holdfast.v1.NamespacesService",
    "holdfast.v1.LocksService",
    "holdfast.v1.SessionsService",
    "com.evrblk.monstera_example.gatewaypb.LocksServiceApi",
];

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
