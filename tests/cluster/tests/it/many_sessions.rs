//! A hundred thousand sessions alive at once, and a leader killed under them.

use holdfast_cluster_tests::start_router;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use holdfast_cluster::{Application, shard_key};
use holdfast_routing::{RetryPolicy, Router};
use holdfast_testkit::{Cluster, Setup, Tenant, eventually_within, wait_before_retry};
use holdfast_types::{
    Command, CommandError, LocksCommand, Metadata, NamespaceRef, OpenSession, Query, RequestId, Response,
};
use tokio::time::Instant;

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const KEPT_ALIVE: usize = 100_000;
const WITHOUT_KEEP_ALIVE: usize = 1_000;
/// So many are opened before those are kept alive, too.
const OPENED_AT_A_TIME: usize = 5_000;
const TTL: Duration = Duration::from_secs(30);
/// How often each session sends a keep-alive.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(8);
/// Callers at once.
const CONCURRENT_CALLERS: usize = 512;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the load continues after the kill: longer than the TTL, which new leaders restart.
const LOAD_AFTER_KILL: Duration = Duration::from_secs(40);

struct Sessions {
    router: Router,
    tenant: Tenant,
    namespaces: Vec<NamespaceRef>,
}

impl Sessions {
    fn key_of_session(&self, at: usize) -> (u32, NamespaceRef, String) {
        let namespace = &self.namespaces[at % self.namespaces.len()];
        let key = shard_key(Application::Locks, self.tenant.account.0, &namespace.name);
        (key, namespace.clone(), format!("se_{at:026}"))
    }

    async fn open(&self, at: usize) {
        let (key, namespace, session_id) = self.key_of_session(at);
        let mut request_id = [0; 16];
        request_id[..8].copy_from_slice(&(at as u64).to_be_bytes());
        let command = Command::Locks(LocksCommand::OpenSession(OpenSession {
            namespace,
            session_id,
            resume: false,
            request_id: RequestId(request_id),
            process_id: format!("process-{at}"),
            ttl_ms: TTL.as_millis() as u64,
            metadata: Metadata::new(),
        }));
        let deadline = Instant::now() + CALL_TIMEOUT;
        let opened = self.router.command(Application::Locks, key, &command, RetryPolicy::LaterTerm, deadline).await;
        let outcome = opened.unwrap_or_else(|error| panic!("session {at}: {error}")).reply.outcome;
        assert!(matches!(outcome, Ok(Response::SessionOpened { .. })), "session {at}: {outcome:?}");
    }

    /// Whether the session exists; `None` without an answer.
    async fn keep_alive(&self, at: usize) -> Option<bool> {
        let (key, namespace, session_id) = self.key_of_session(at);
        let query = Query::KeepAlive { namespace, session_id, epoch: None };
        let reply = self.router.query(Application::Locks, key, &query, Instant::now() + CALL_TIMEOUT).await.ok()?;
        match reply.outcome {
            Ok(_) => Some(true),
            Err(CommandError::SessionNotFound(_)) => Some(false),
            Err(refusal) => panic!("session {at}: {refusal}"),
        }
    }

    async fn exists(&self, at: usize) -> Option<bool> {
        let (key, namespace, session_id) = self.key_of_session(at);
        let query = Query::Session { namespace, session_id };
        let reply = self.router.query(Application::Locks, key, &query, Instant::now() + CALL_TIMEOUT).await.ok()?;
        Some(reply.outcome.is_ok())
    }
}

/// Goes round and round through those that are open, each about every [`KEEP_ALIVE_INTERVAL`], until told to stop.
/// Returns the number of answered keep-alives.
async fn run_keep_alives(sessions: Arc<Sessions>, open: Arc<AtomicUsize>, stop: Arc<AtomicBool>) -> u64 {
    let answered = AtomicU64::new(0);
    while !stop.load(Ordering::Relaxed) {
        let round = Instant::now();
        let (answered, sessions) = (&answered, &sessions);
        stream::iter(0..open.load(Ordering::Relaxed))
            .for_each_concurrent(CONCURRENT_CALLERS, async |at| match sessions.keep_alive(at).await {
                Some(true) => _ = answered.fetch_add(1, Ordering::Relaxed),
                Some(false) => panic!("session {at} ended though it was kept alive"),
                None => {}
            })
            .await;
        assert!(round.elapsed() < TTL, "a round took {:?}: the machine is too slow for this load", round.elapsed());
        while round.elapsed() < KEEP_ALIVE_INTERVAL && !stop.load(Ordering::Relaxed) {
            wait_before_retry().await;
        }
    }
    answered.into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_sessions_outlive_their_leader_and_the_silent_do_not() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("many-sessions", &NAMESPACES).await;
    let mut namespaces = Vec::new();
    for namespace in NAMESPACES {
        namespaces.push(cluster.namespace_ref(&tenant, namespace).await);
    }
    let router = start_router(&cluster, "many sessions");
    let sessions = Arc::new(Sessions { router, tenant: tenant.clone(), namespaces });
    let began = Instant::now();
    let (open, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    // From the first on: on a slow machine the last are opened after the first would have ended.
    let keeping = tokio::spawn(run_keep_alives(Arc::clone(&sessions), Arc::clone(&open), Arc::clone(&stop)));
    let open_all = async |range: Range<usize>| {
        stream::iter(range).for_each_concurrent(CONCURRENT_CALLERS, |at| sessions.open(at)).await;
    };
    for first in (0..KEPT_ALIVE).step_by(OPENED_AT_A_TIME) {
        open_all(first..first + OPENED_AT_A_TIME).await;
        open.store(first + OPENED_AT_A_TIME, Ordering::Relaxed);
    }
    open_all(KEPT_ALIVE..KEPT_ALIVE + WITHOUT_KEEP_ALIVE).await;
    println!("{} sessions were opened in {:.1?}", KEPT_ALIVE + WITHOUT_KEEP_ALIVE, began.elapsed());
    let (leader, _, _) = cluster.wait_leader(&cluster.locks_shard(&tenant, NAMESPACES[0])).await;
    let killed = Instant::now();
    cluster.nodes[leader].kill().await;
    cluster.nodes[leader].start();
    eventually_within(LOAD_AFTER_KILL + TTL, "every silent session ends", async || {
        let (mut left, sessions) = (0, &sessions);
        for at in KEPT_ALIVE..KEPT_ALIVE + WITHOUT_KEEP_ALIVE {
            left += u32::from(sessions.exists(at).await != Some(false));
        }
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await;
    println!("the {WITHOUT_KEEP_ALIVE} silent ones were gone {:.1?} after a leader was killed", killed.elapsed());
    while killed.elapsed() < LOAD_AFTER_KILL {
        assert!(!keeping.is_finished(), "a session ended early");
        wait_before_retry().await;
    }
    stop.store(true, Ordering::Relaxed);
    let answered = keeping.await.expect("every session lived");
    println!("{answered} keep-alives were answered in {:.1?}", began.elapsed());
    cluster.wait_ready().await;
    cluster.wait_equal_states().await;
    sessions.router.shutdown().await;
}
