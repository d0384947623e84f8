//! What every attack is made of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use holdfast_proto::v1;
use holdfast_testkit::{RestClient, wait_out};
use serde_json::Value;
use tonic::Status;

use super::grpc_client::{CallStats, GrpcClient};
use super::session::{self, Session, lock_message};

/// Claims that a request may have.
pub(crate) const MAX_CLAIMS: usize = 64;
/// Calls that are under way together.
const MAX_CONCURRENT_CALLS: usize = 16;
/// Threads of one session that wait.
const OWNERS_PER_SESSION: usize = 5_000;
const TTL: Duration = Duration::from_secs(600);
/// Attempts of a call that is refused for want of room.
const MAX_ATTEMPTS: usize = 20;
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The hostile account, in one round of an attack.
#[derive(Clone)]
pub(crate) struct Attacker {
    pub gateways: Vec<SocketAddr>,
    /// Where the nodes listen for gateways, peers and operators; none in one process.
    pub nodes: Vec<SocketAddr>,
    /// Where the gateways listen for Locktopus clients. They send no key, and act for the first hostile account.
    pub locktopus: Vec<SocketAddr>,
    pub key: String,
    /// Its namespace, in the shard in which half of the quiet account's locks are.
    pub namespace: String,
    /// Others of its own that it may make, in the same shard.
    pub extra_namespaces: Vec<String>,
    pub is_full: bool,
    /// Calls that the account may have waiting at one gateway.
    pub max_held_calls: usize,
    pub calls: Arc<CallStats>,
    pub api: RestClient,
    pub next_gateway: Arc<AtomicUsize>,
}

/// Whose the holds are.
#[derive(Clone)]
pub(crate) enum Owner {
    Process(String),
    Session(String),
}

/// What is asked for beside the paths.
#[derive(Clone, Default)]
pub(crate) struct AcquireOptions {
    pub mode: v1::Mode,
    /// The instant at which all of it ends.
    pub expires_at: Option<prost_types::Timestamp>,
    pub metadata: std::collections::HashMap<String, String>,
}

impl Attacker {
    /// How large something is.
    pub(crate) fn scaled(&self, full: usize, short: usize) -> usize {
        if self.is_full { full } else { short }
    }

    /// A new connection, to the gateways in turns.
    pub(crate) async fn connect(&self) -> Result<GrpcClient, String> {
        let turn = self.next_gateway.fetch_add(1, Ordering::Relaxed);
        GrpcClient::connect(self.gateways[turn % self.gateways.len()], &self.key, &self.calls).await
    }

    /// A session. One that the gateway has no room for is tried again: the calls of the attack itself fill it.
    pub(crate) async fn open_session(&self) -> Result<Session, String> {
        let mut attempts = 1;
        loop {
            match session::open(&self.connect().await?, &self.namespace, TTL, None).await {
                Err(reason) if attempts < MAX_ATTEMPTS && reason.contains("UNAVAILABLE") => attempts += 1,
                result => return result,
            }
            wait_out(RETRY_DELAY).await;
        }
    }

    /// A session without a connection; its id.
    pub(crate) async fn create_session(&self, grpc: &GrpcClient, ttl: Duration) -> Result<String, String> {
        let made = grpc.create_session(&self.namespace, ttl).await;
        made.map_err(|status| format!("a session is refused: {status}"))
    }

    /// One request of its claims, without waiting.
    pub(crate) fn acquire_request(
        &self,
        owner: &Owner,
        terms: &AcquireOptions,
        paths: Vec<Vec<String>>,
    ) -> v1::AcquireLocksRequest {
        let resource = |path| v1::Resource { path, mode: terms.mode.into() };
        let (process_id, session_id) = match owner {
            Owner::Process(name) => (Some(name.clone()), None),
            Owner::Session(id) => (None, Some(id.clone())),
        };
        let lives = process_id.is_some() && terms.expires_at.is_none();
        v1::AcquireLocksRequest {
            namespace: self.namespace.clone(),
            resources: paths.into_iter().map(resource).collect(),
            ttl_ms: lives.then_some(TTL.as_millis() as u64),
            expires_at: terms.expires_at,
            metadata: terms.metadata.clone(),
            process_id,
            session_id,
            ..Default::default()
        }
    }

    /// Takes `count` locks whose names begin so, as many at a time as may be. The tokens, each with its first number.
    /// What is refused is counted and left out.
    pub(crate) async fn acquire_many(
        &self,
        owner: &Owner,
        terms: &AcquireOptions,
        name: &str,
        count: usize,
    ) -> Result<Vec<(usize, u64)>, String> {
        let grpc = self.connect().await?;
        let one = |first: usize| {
            let paths = (first..count.min(first + MAX_CLAIMS)).map(|at| vec![format!("{name}{at}")]).collect();
            let (grpc, message) = (grpc.clone(), self.acquire_request(owner, terms, paths));
            async move { acquire_with_retries(&grpc, message).await.map(|token| (first, token)) }
        };
        let all = stream::iter((0..count).step_by(MAX_CLAIMS)).map(one).buffer_unordered(MAX_CONCURRENT_CALLS);
        Ok(all.filter_map(async |taken| taken).collect().await)
    }

    /// A call of another kind than locks, such as `semaphores` and `configure`, made again while the answer is to retry
    /// later.
    pub(crate) async fn call_thing(&self, kind: &str, verb: &str, body: Value) -> Result<Value, String> {
        self.call_rest(&format!("POST /v1/namespaces/{}/{kind}/{verb}", self.namespace), Some(body)).await
    }

    /// A call over REST, made again while the answer is to retry later.
    pub(crate) async fn call_rest(&self, line: &str, body: Option<Value>) -> Result<Value, String> {
        let mut last = String::new();
        for _ in 0..MAX_ATTEMPTS {
            self.calls.record_call();
            match self.api.fetch::<Value>(line, body.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.calls.record_error(&error.code);
                    last = format!("{line}: {error}");
                    if !matches!(error.code.as_str(), "RATE_LIMITED" | "UNAVAILABLE") {
                        break;
                    }
                }
            }
            wait_out(RETRY_DELAY).await;
        }
        Err(last)
    }

    /// So many threads that ask for something and wait for it. They wait until the sessions are dropped.
    pub(crate) async fn spawn_waiters(
        &self,
        count: usize,
        wanted: impl Fn(usize) -> Vec<v1::Resource>,
    ) -> Result<Vec<Session>, String> {
        let mut sessions = Vec::new();
        for first in (0..count).step_by(OWNERS_PER_SESSION) {
            let mut session = self.open_session().await?;
            let each = first..count.min(first + OWNERS_PER_SESSION);
            session.request_locks(each.map(|at| lock_message(format!("t{at}"), format!("r{at}"), wanted(at)))).await?;
            sessions.push(session);
        }
        Ok(sessions)
    }

    /// Notes how long something takes.
    pub(crate) async fn timed<T>(&self, what: &'static str, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = work.await;
        self.calls.record_duration(what, begun.elapsed());
        done
    }
}

/// Repeats the call while the answer is to retry later. Returns the token, unless it is refused for good.
async fn acquire_with_retries(grpc: &GrpcClient, message: v1::AcquireLocksRequest) -> Option<u64> {
    for _ in 0..MAX_ATTEMPTS {
        match grpc.acquire_set(message.clone()).await {
            Ok(answer) => return answer.fencing_token,
            Err(status) if is_retryable(&status) => wait_out(RETRY_DELAY).await,
            Err(_) => return None,
        }
    }
    None
}

/// Whether the answer is to retry later.
pub(crate) fn is_retryable(status: &Status) -> bool {
    status.code() == tonic::Code::Unavailable || super::grpc_client::error_code(status) == "RATE_LIMITED"
}

/// Does something `count` times, so many at once.
pub(crate) async fn run_concurrently<F: Future<Output = ()>>(count: usize, width: usize, work: impl Fn(usize) -> F) {
    stream::iter(0..count).for_each_concurrent(width, work).await;
}

/// An instant from now.
pub(crate) fn timestamp_in(by: Duration) -> prost_types::Timestamp {
    prost_types::Timestamp::from(std::time::SystemTime::now() + by)
}
