//! One listener for every door: REST over HTTP/1.1 and HTTP/2, gRPC over HTTP/2, health and metrics.
//!
//! Everything that a peer can hold on to is bounded: connections, streams of one, sizes of heads, and how long a peer
//! may take to say what it wants.

mod room;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use holdfast_supervise::{Owner, TaskSet};
use holdfast_tls::ServerTls;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::ServiceExt;
use tracing::{debug, info, warn};

use crate::dlocks::DlocksDoor;
use crate::health::{MetricsText, Probes};
use crate::service::Service;
use crate::{grpc, rest, turns};
use room::{Place, Room};

pub use crate::grpc::DescriptorsError;
pub(crate) use room::Stay;

/// Connections at once. When there are more, idle ones give way.
pub const MAX_CONNECTIONS: usize = 10_000;
/// Calls at once on one HTTP/2 connection.
pub const MAX_STREAMS: u32 = 1_000;
/// Bytes of the head of a request.
pub const MAX_HEAD_BYTES: u32 = 32 * 1_024;
/// How long a new connection may take until its first request.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// How long an HTTP/1.1 connection may take for the head of its next request.
const NEXT_HEAD_WITHIN: Duration = Duration::from_secs(75);
/// How often an HTTP/2 peer that is silent is asked whether it is still there, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(20);
/// How long calls in flight may take to end when the process stops: a call's usual deadline and a little.
const DRAIN_WITHIN: Duration = Duration::from_secs(12);
/// How long HTTP/1.1 connections of a process that stops take one more call, which is told that it is the last. One that is
/// idle could only be closed without a word, and the call that is on its way at that moment would be lost.
const LAST_CALL_WITHIN: Duration = Duration::from_secs(1);
/// How long a connection that is told to end may take when nothing is in flight on it.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long one may take that has to make room for another.
const GIVE_WAY_WITHIN: Duration = Duration::from_millis(250);
/// How often the gRPC health service takes over what `/readyz` would say.
const READY_EVERY: Duration = Duration::from_millis(500);
/// How long to wait after an accept failed for want of file descriptors or memory.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What is behind the listener.
#[derive(Clone)]
pub struct Doors {
    /// The operations.
    pub service: Service,
    /// Whether dlocks clients may name their account in metadata instead of sending an API key.
    pub dlocks_account_metadata: bool,
    /// Renders what `/metrics` answers.
    pub metrics: MetricsText,
    /// Encrypts every connection, when there is a certificate.
    pub tls: Option<ServerTls>,
}

/// Serves every door on one listener until `shutdown` ends, then lets calls in flight end, and returns.
///
/// # Errors
/// When the descriptors that are built in cannot be read.
pub async fn serve(
    listener: TcpListener,
    doors: Doors,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DescriptorsError> {
    describe();
    let service = doors.service.clone();
    let (reporter, health) = tonic_health::server::health_reporter();
    let dlocks = DlocksDoor::new(doors.service.clone(), doors.dlocks_account_metadata);
    let grpc = grpc::routes(&doors.service, dlocks, health)?;
    let rest = rest::finish(rest::routes(doors.service.clone(), probes(&doors)));
    let stopping = CancellationToken::new();
    let tasks = TaskTracker::new();
    // Once before anybody can ask, so that no service is unknown and none is said to serve before it can.
    tell(&reporter, doors.service.ready().is_ok()).await;
    let (of_service, until) = (doors.service.clone(), stopping.clone());
    let health_tasks = TaskSet::new(Owner::process());
    health_tasks.finish("health", move || follow_readiness(reporter.clone(), of_service.clone(), until.clone()));
    serve_front(listener, Front { rest, grpc, tls: doors.tls }, &service, Running { tasks, stopping }, shutdown).await;
    Ok(())
}

/// Serves REST on a listener beside the one that [`serve`] has, without TLS: for the process itself, while it starts.
pub async fn serve_beside(listener: TcpListener, doors: &Doors, shutdown: impl Future<Output = ()>) {
    let rest = rest::finish(rest::routes(doors.service.clone(), probes(doors)));
    let front = Front { rest: rest.clone(), grpc: rest, tls: None };
    let Running { tasks, stopping } = Running::default();
    accept(&listener, front, &tasks, &stopping, shutdown).await;
    stopping.cancel();
    tasks.close();
    tasks.wait().await;
}

/// Serves routes on a listener of their own, as [`serve`] does.
pub(crate) async fn serve_routes(
    listener: TcpListener,
    tls: Option<ServerTls>,
    routes: Router,
    service: &Service,
    shutdown: impl Future<Output = ()>,
) {
    let front = Front { rest: routes.clone(), grpc: routes, tls };
    serve_front(listener, front, service, Running::default(), shutdown).await;
}

/// What runs behind a listener, and the sign to end it.
#[derive(Default)]
struct Running {
    tasks: TaskTracker,
    stopping: CancellationToken,
}

async fn serve_front(
    listener: TcpListener,
    front: Front,
    service: &Service,
    Running { tasks, stopping }: Running,
    shutdown: impl Future<Output = ()>,
) {
    accept(&listener, front, &tasks, &stopping, shutdown).await;
    // Closed first, so that new callers go elsewhere while those in flight are answered.
    drop(listener);
    // What has no end of its own would keep its connection until it is cut off.
    service.end_streams();
    stopping.cancel();
    tasks.close();
    if timeout(LAST_CALL_WITHIN + DRAIN_WITHIN + CLOSE_WITHIN, tasks.wait()).await.is_err() {
        warn!(connections = tasks.len(), "connections were cut off: they did not end in time");
    }
}

fn describe() {
    turns::describe();
    describe_counter!("holdfast_http_requests_total", "Calls over REST, by route, method and HTTP status.");
    describe_counter!("holdfast_grpc_requests_total", "Calls over gRPC, by method and status.");
    describe_histogram!("holdfast_request_seconds", Unit::Seconds, "Time from the head of a call to its answer's.");
    describe_gauge!("holdfast_connections", "Connections that are open.");
    describe_counter!("holdfast_connections_given_way_total", "Connections that ended to make room for others.");
    describe_gauge!("holdfast_session_connections", "Connections of sessions that are open.");
    describe_counter!("holdfast_gateway_cache_lookups_total", "Look-ups of keys, accounts and namespaces, by outcome.");
}

fn probes(doors: &Doors) -> Probes {
    let (for_ready, for_metrics) = (doors.service.clone(), doors.service.clone());
    Probes {
        ready: Arc::new(move || for_ready.ready()),
        metrics: Arc::clone(&doors.metrics),
        may_read_metrics: Arc::new(move |bearer| for_metrics.is_operator_token(bearer)),
    }
}

async fn accept(
    listener: &TcpListener,
    front: Front,
    tasks: &TaskTracker,
    stopping: &CancellationToken,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let room = Room::new(MAX_CONNECTIONS);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                not_accepted(&error).await;
                continue;
            }
        };
        let place = tokio::select! {
            biased;
            () = &mut shutdown => return,
            place = room.place(tasks) => place,
        };
        tasks.spawn(serve_connection(stream, peer, front.clone(), place, stopping.clone()));
    }
}

async fn not_accepted(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    // The peer went away before it was accepted, which is no concern of ours.
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return;
    }
    warn!(%error, "a connection cannot be accepted");
    sleep(ACCEPT_AGAIN_AFTER).await;
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    front: Front,
    place: Place,
    stopping: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "answers may be delayed: TCP_NODELAY cannot be set");
    }
    let Some(tls) = front.tls.clone() else { return serve_http(stream, peer, front, place, stopping).await };
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        () = stopping.cancelled() => return,
        () = place.gives_way() => return,
    };
    match accepted {
        Ok(stream) => serve_http(stream, peer, front, place, stopping).await,
        Err(error) => debug!(%peer, %error, "no keys were agreed on with a peer"),
    }
}

async fn serve_http<S>(stream: S, peer: SocketAddr, front: Front, place: Place, stopping: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let spoken = Arc::<OnceLock<Version>>::default();
    let (speaks, taken, ending) = (Arc::clone(&spoken), place.clone(), stopping.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let version = *speaks.get_or_init(|| request.version());
        let stay = taken.stay();
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(stay.clone());
        let (answer, ending) = (front.clone().answer(request, stay), ending.clone());
        async move { answer.await.map(|answer| if ending.is_cancelled() { last(answer, version) } else { answer }) }
    });
    let builder = builder();
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let first_request_by = Instant::now() + FIRST_REQUEST_WITHIN;
    let close_within = tokio::select! {
        ended = connection.as_mut() => return ended_with(peer, ended),
        () = stopping.cancelled() => DRAIN_WITHIN,
        () = place.gives_way() => GIVE_WAY_WITHIN,
        // Also those that never say which protocol they speak end here.
        () = silent(first_request_by, &spoken) => CLOSE_WITHIN,
    };
    if stopping.is_cancelled() && spoken.get() != Some(&Version::HTTP_2) {
        tokio::select! {
            ended = connection.as_mut() => return ended_with(peer, ended),
            () = sleep(LAST_CALL_WITHIN) => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    match timeout(close_within, connection).await {
        Ok(ended) => ended_with(peer, ended),
        Err(_) => debug!(%peer, "a connection was cut off: it did not end in time"),
    }
}

/// Ends when no request came in time; never, when one did.
async fn silent(deadline: Instant, spoken: &OnceLock<Version>) {
    tokio::time::sleep_until(deadline).await;
    if spoken.get().is_some() {
        std::future::pending::<()>().await;
    }
}

/// Says that the connection ends with this answer, where its protocol has no other way to say so.
fn last(mut answer: Response<Body>, version: Version) -> Response<Body> {
    // What becomes a WebSocket is no HTTP any more, and says there that it ends.
    if version != Version::HTTP_2 && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn ended_with(peer: SocketAddr, ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        debug!(%peer, %error, "a connection ended badly");
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_HEAD_WITHIN)
        .max_buf_size(MAX_HEAD_BYTES as usize * 2);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    builder
}

/// Both kinds of door. A cheap clone.
#[derive(Clone)]
struct Front {
    rest: Router,
    grpc: Router,
    tls: Option<ServerTls>,
}

impl Front {
    async fn answer(self, request: Request<Incoming>, stay: Stay) -> Result<Response<Body>, Infallible> {
        let door = if is_grpc(request.version(), request.headers()) { self.grpc } else { self.rest };
        let answer = door.oneshot(request.map(Body::new)).await?;
        // What is there as a whole is as good as sent; a stream keeps its connection busy until it ends.
        let is_whole = answer.body().size_hint().exact().is_some();
        Ok(if is_whole { answer } else { answer.map(|body| Body::new(Staying { body, _stay: stay })) })
    }
}

/// A body that keeps its connection busy.
struct Staying {
    body: Body,
    _stay: Stay,
}

impl hyper::body::Body for Staying {
    type Data = <Body as hyper::body::Body>::Data;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// gRPC is told by its content type: the paths of its methods are no REST routes, but then they need not stay apart.
fn is_grpc(version: Version, headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(CONTENT_TYPE) else { return false };
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    version == Version::HTTP_2 && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Keeps the standard health service in step with readiness.
async fn follow_readiness(reporter: HealthReporter, service: Service, stopping: CancellationToken) {
    let mut ticks = interval(READY_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let stop = tokio::select! {
            () = stopping.cancelled() => true,
            _ = ticks.tick() => false,
        };
        tell(&reporter, !stop && service.ready().is_ok()).await;
        if stop {
            info!("no new calls are taken; those in flight are answered");
            return;
        }
    }
}

async fn tell(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in SERVICES {
        reporter.set_service_status(name, status).await;
    }
}

/// What the health service knows: the process as a whole, and each service of the API.
const SERVICES: [&str; 6] = [
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
