//! A hundred thousand requests wait for one lock: it goes from one to the next as it does with ten.

use std::time::Duration;

use futures::{StreamExt, stream};
use holdfast_cluster::{Application, shard_key};
use holdfast_cluster_tests::{DurationStats, start_router};
use holdfast_routing::{RetryPolicy, Router};
use holdfast_testkit::{Cluster, Setup};
use holdfast_types::{
    Acquire, AcquireOutcome, Claim, Command, LocksCommand, Metadata, Mode, NamespaceRef, Owner, Path, Release,
    ReleaseTarget, Response, Wait,
};
use tokio::time::Instant;

const NAMESPACE: &str = "orders";
const SHORT_QUEUE: usize = 10;
const LONG_QUEUE: usize = 100_000;
const HAND_OFFS: usize = 9;
/// Callers at once.
const CONCURRENT_CALLERS: usize = 512;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

struct Queue {
    router: Router,
    key: u32,
    namespace: NamespaceRef,
    lock: &'static str,
}

impl Queue {
    async fn send(&self, command: LocksCommand) -> Response {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let command = Command::Locks(command);
        let routed =
            self.router.command(Application::Locks, self.key, &command, RetryPolicy::LaterTerm, deadline).await;
        routed.expect("the shard answers").reply.outcome.expect("nothing is refused")
    }

    /// Joins the queue without a client that waits.
    async fn enqueue(&self, at: usize) -> AcquireOutcome {
        let acquire = Acquire {
            namespace: self.namespace.clone(),
            owner: Owner::Process(format!("waiter-{at}")),
            claims: vec![Claim { path: Path::flat(self.lock), mode: Mode::Write }],
            ttl_ms: Some(3_600_000),
            transition_ms: 0,
            metadata: Metadata::new(),
            fencing_token: None,
            requested_expires_at_ns: None,
            wait: Wait::For(600_000),
            allow_upgrade: false,
            request_id: None,
            attempt: 0,
            message: None,
        };
        match self.send(LocksCommand::Acquire(acquire)).await {
            Response::Acquired { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// Releases; who has the lock after that very step.
    async fn release(&self, owner: String) -> String {
        let what = ReleaseTarget::Paths { paths: vec![Path::flat(self.lock)], fencing_token: None };
        let release = Release { namespace: self.namespace.clone(), owner: Owner::Process(owner), what, message: None };
        match self.send(LocksCommand::Release(release)).await {
            Response::Released { released: true, locks } => {
                locks.into_iter().find_map(|lock| lock.write_lock_holder).expect("somebody has it").process_id
            }
            other => panic!("{other:?}"),
        }
    }

    /// How long releases take, each of which hands the lock to the next.
    async fn measure_hand_offs(&self, waiting: usize) -> DurationStats {
        assert!(matches!(self.enqueue(0).await, AcquireOutcome::Granted { .. }));
        // The first ones in order, to know whose turn it is; the others as they come.
        for at in 1..=HAND_OFFS + 1 {
            assert!(matches!(self.enqueue(at).await, AcquireOutcome::Enqueued(_)));
        }
        let began = Instant::now();
        stream::iter(HAND_OFFS + 2..=waiting)
            .for_each_concurrent(CONCURRENT_CALLERS, async |at| {
                assert!(matches!(self.enqueue(at).await, AcquireOutcome::Enqueued(_)))
            })
            .await;
        println!("{waiting} wait for one lock after {:.1?}", began.elapsed());
        let mut times = Vec::new();
        for at in 0..HAND_OFFS {
            let began = Instant::now();
            assert_eq!(self.release(format!("waiter-{at}")).await, format!("waiter-{}", at + 1));
            times.push(began.elapsed());
        }
        DurationStats::from_durations(times)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_handed_on_however_many_wait_for_it() {
    let cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("long-queue", &[NAMESPACE]).await;
    let namespace = cluster.namespace_ref(&tenant, NAMESPACE).await;
    let key = shard_key(Application::Locks, tenant.account.0, NAMESPACE);
    let router = start_router(&cluster, "long queue");
    let queue = |lock| Queue { router: router.clone(), key, namespace: namespace.clone(), lock };
    let few = queue("few").measure_hand_offs(SHORT_QUEUE).await;
    // The namespace may have as many waiting requests as one lock, so the few count too.
    let many = queue("many").measure_hand_offs(LONG_QUEUE - SHORT_QUEUE).await;
    println!("hand-offs with {SHORT_QUEUE} waiting: {few}; with {} waiting: {many}", LONG_QUEUE - SHORT_QUEUE);
    cluster.wait_equal_states().await;
    router.shutdown().await;
}
