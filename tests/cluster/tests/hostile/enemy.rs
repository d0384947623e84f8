//! What every attack is made of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use holdfast_cluster_tests::Api;
use holdfast_proto::v1;
use tonic::Status;

use super::door::{Calls, Door};
use super::session::{self, Session, lock};

/// Claims that a request may have.
pub(crate) const CLAIMS: usize = 64;
/// Calls that are under way together.
const AT_ONCE: usize = 16;
/// Threads of one session that wait.
const OWNERS_PER_SESSION: usize = 5_000;
const TTL: Duration = Duration::from_secs(600);

/// The hostile account, in one round of an attack.
#[derive(Clone)]
pub(crate) struct Enemy {
    pub gateways: Vec<SocketAddr>,
    pub key: String,
    /// Its namespace, in the shard in which half of the quiet account's locks are.
    pub namespace: String,
    /// Others of its own that it may make, in the same shard.
    pub more_namespaces: Vec<String>,
    pub is_full: bool,
    pub calls: Arc<Calls>,
    pub api: Api,
    pub turn: Arc<AtomicUsize>,
}

/// Whose the holds are.
#[derive(Clone)]
pub(crate) enum Owner {
    Process(String),
    Session(String),
}

/// What is asked for beside the paths.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    pub mode: v1::Mode,
    /// The instant at which all of it ends.
    pub expires_at: Option<prost_types::Timestamp>,
    pub metadata: std::collections::HashMap<String, String>,
}

impl Enemy {
    /// How large something is.
    pub(crate) fn size(&self, full: usize, short: usize) -> usize {
        if self.is_full { full } else { short }
    }

    /// A new connection, to the gateways in turns.
    pub(crate) async fn door(&self) -> Result<Door, String> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Door::connect(self.gateways[turn % self.gateways.len()], &self.key, &self.calls).await
    }

    /// A session.
    pub(crate) async fn open(&self) -> Result<Session, String> {
        session::open(&self.door().await?, &self.namespace, TTL, None).await
    }

    /// A session without a connection; its id.
    pub(crate) async fn quiet_session(&self, door: &Door, ttl: Duration) -> Result<String, String> {
        let made = door.create_session(&self.namespace, ttl).await;
        made.map_err(|status| format!("a session is refused: {status}"))
    }

    /// One request of its claims, without waiting.
    pub(crate) fn set(&self, owner: &Owner, terms: &Terms, paths: Vec<Vec<String>>) -> v1::AcquireLocksRequest {
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
    pub(crate) async fn hold(
        &self,
        owner: &Owner,
        terms: &Terms,
        name: &str,
        count: usize,
    ) -> Result<Vec<(usize, u64)>, String> {
        let door = self.door().await?;
        let one = |first: usize| {
            let paths = (first..count.min(first + CLAIMS)).map(|at| vec![format!("{name}{at}")]).collect();
            let (door, message) = (door.clone(), self.set(owner, terms, paths));
            async move { insist(&door, message).await.map(|token| (first, token)) }
        };
        let all = stream::iter((0..count).step_by(CLAIMS)).map(one).buffer_unordered(AT_ONCE);
        Ok(all.filter_map(async |taken| taken).collect().await)
    }

    /// So many threads that ask for something and wait for it. They wait until the sessions are dropped.
    pub(crate) async fn crowd(
        &self,
        count: usize,
        wanted: impl Fn(usize) -> Vec<v1::Resource>,
    ) -> Result<Vec<Session>, String> {
        let mut sessions = Vec::new();
        for first in (0..count).step_by(OWNERS_PER_SESSION) {
            let mut session = self.open().await?;
            let each = first..count.min(first + OWNERS_PER_SESSION);
            session.ask(each.map(|at| lock(format!("t{at}"), format!("r{at}"), wanted(at)))).await?;
            sessions.push(session);
        }
        Ok(sessions)
    }

    /// Notes how long something takes.
    pub(crate) async fn timed<T>(&self, what: &'static str, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = work.await;
        self.calls.took(what, begun.elapsed());
        done
    }
}

/// Asks again while it is told to come later; the token, unless it is refused for good.
async fn insist(door: &Door, message: v1::AcquireLocksRequest) -> Option<u64> {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        match door.acquire_set(message.clone()).await {
            Ok(answer) => return answer.fencing_token,
            Err(status) if is_for_later(&status) => super::pause::wait_for(Duration::from_millis(50)).await,
            Err(_) => return None,
        }
    }
    None
}

fn is_for_later(status: &Status) -> bool {
    status.code() == tonic::Code::Unavailable || super::door::code_of(status) == "RATE_LIMITED"
}

/// Does something `count` times, so many at once.
pub(crate) async fn at_once<F: Future<Output = ()>>(count: usize, width: usize, work: impl Fn(usize) -> F) {
    stream::iter(0..count).for_each_concurrent(width, work).await;
}

/// An instant from now.
pub(crate) fn in_the_future(by: Duration) -> prost_types::Timestamp {
    prost_types::Timestamp::from(std::time::SystemTime::now() + by)
}
