//! Three nodes of one process, over sockets and disks in memory, in real time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_cluster::{Application, ClusterConfig, ShardMap};
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, Claim, Command, CommandError, Incarnation, Limits, LocksCommand, Metadata,
    Mode, NamespaceMessage, NamespaceRef, Owner, Path, Reply, Response, Rules, Wait, codec,
};
use holdfast_node::{AdminEndpoints, ApplyObserver, Node, NodeOptions, serve};
use holdfast_proto::internal::{ReplicaStatus, StatusAnswer};
use holdfast_replication::EntryHeader;
use holdfast_routing::{AdminClient, RetryPolicy, RouteError, Router, RoutingOptions, TcpDialer};
use holdfast_storage::{MemoryDisk, NodeStore};
pub(crate) use holdfast_testkit::eventually_some as eventually;
use holdfast_testkit::free_address;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// The shards with locks.
pub(crate) const SHARDS: u32 = 4;
/// Entries after which a replica makes a snapshot.
pub(crate) const SNAPSHOT_INTERVAL: u64 = 50;
/// Longer than anything takes on a busy machine.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
/// A path with this name in it is what [`PanickingObserver`] looks for.
pub(crate) const POISON: &str = "poison";

/// What every node shows of itself, again and again: reasons why it was not ready, and failing tasks.
pub(crate) type NotReadyReasons = Arc<Mutex<BTreeSet<String>>>;

/// Panics in the middle of an entry with an acquire that names [`POISON`], so often at most, unless it has no effect.
#[derive(Default)]
pub(crate) struct PanickingObserver {
    pub(crate) panics_left: Mutex<usize>,
    /// The rules of the last entry.
    pub(crate) rules: Mutex<u16>,
    /// How many holds each applied report lists.
    pub(crate) reports: Mutex<Vec<usize>>,
}

impl ApplyObserver for PanickingObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, _: &str, header: EntryHeader, commands: &[Bytes], replies: &[Bytes], _: &ShardState) {
        *self.rules.lock() = header.rules;
        for command in commands {
            if let Ok(Command::Locks(LocksCommand::LockInfo(info) | LocksCommand::LockInfoPart(info))) =
                codec::decode(command)
            {
                self.reports.lock().push(info.held.len());
            }
        }
        let names = |bytes: &Bytes| bytes.windows(POISON.len()).any(|part| part == POISON.as_bytes());
        let has_effect = |reply: &Bytes| {
            let reply = codec::decode::<Reply>(reply);
            reply.is_ok_and(|reply| matches!(reply.outcome, Ok(Response::Acquired { .. })))
        };
        let mut panics = commands.iter().zip(replies).filter(|&(command, reply)| names(command) && has_effect(reply));
        let mut left = self.panics_left.lock();
        if *left > 0 && panics.next().is_some() {
            *left -= 1;
            drop(left);
            panic!("a bug in the state machine");
        }
    }

    fn restored(&self, _: &str, _: &ShardState) {}
}

struct RunningNode {
    node: Arc<Node>,
    _stop: oneshot::Sender<()>,
}

/// The nodes, and a router to them.
pub(crate) struct TestCluster {
    pub(crate) config: ClusterConfig,
    pub(crate) router: Router,
    pub(crate) seen: NotReadyReasons,
    pub(crate) observers: Vec<Arc<PanickingObserver>>,
    pub(crate) secret: ClusterSecret,
    disks: Vec<MemoryDisk>,
    nodes: Vec<Option<RunningNode>>,
}

impl TestCluster {
    /// Starts all, and waits until they serve.
    pub(crate) async fn start() -> Self {
        let addresses = (1..=3).map(|number| (format!("nd_{number}"), free_address().to_string())).collect();
        let config = ClusterConfig::generate(addresses, SHARDS, 3).expect("it is a config");
        let config = ClusterConfig { rules: Some(Rules::HIGHEST.0), ..config };
        let secret = ClusterSecret::generate().expect("there are random numbers");
        let map = ShardMap::new(config.clone()).expect("it is a config");
        let signer = ServiceSigner::new(&secret, "test");
        let options = RoutingOptions::default();
        let router = Router::start(map, signer, "caller".to_owned(), Arc::new(TcpDialer), options, None);
        let observers = (0..3).map(|_| Arc::default()).collect();
        let disks = (0..3).map(|_| MemoryDisk::new()).collect();
        let (nodes, seen) = ((0..3).map(|_| None).collect(), NotReadyReasons::default());
        let mut world = Self { config, router, seen, observers, secret, disks, nodes };
        for number in 0..3 {
            world.start_node(number, "1").await;
        }
        world.wait_ready().await;
        for shard in 0..SHARDS {
            world.open_namespace(shard, 1, namespace()).await;
        }
        world
    }

    pub(crate) async fn start_node(&mut self, number: usize, release: &str) {
        let id = self.config.nodes[number].id.clone();
        let mut options = NodeOptions::new(id, self.config.clone(), self.secret.clone(), "");
        options.release = release.to_owned();
        options.snapshot_interval_entries = SNAPSHOT_INTERVAL;
        options.retain_entries = 10;
        let store = NodeStore::in_memory(&self.disks[number], &options.identity()).expect("the store opens");
        let node = Node::with_store(&options, store, Arc::new(TcpDialer)).expect("the node starts");
        let observer: Arc<dyn ApplyObserver> = self.observers[number].clone();
        let node = Arc::new(node.with_observer(observer));
        let address = self.config.nodes[number].address.clone();
        let listener = eventually("the port is free again", async || TcpListener::bind(&address).await.ok()).await;
        let (stop, stopped) = oneshot::channel();
        let (served, seen, router) = (node.clone(), self.seen.clone(), self.router.clone());
        let probes = AdminEndpoints { metrics: Arc::new(String::new), is_operator: Arc::new(|_| false) };
        tokio::spawn(async move {
            let looking = async {
                loop {
                    let failing = served.failing_task()().into_iter().chain(router.failing_task());
                    seen.lock().extend(served.not_ready()().into_iter().chain(failing));
                    sleep(Duration::from_millis(2)).await;
                }
            };
            let stopped = async move { drop(stopped.await) };
            tokio::select! {
                _ = serve(listener, None, &served, probes, stopped) => {}
                () = looking => {}
            }
        });
        node.start_replicas(&options).await.expect("the replicas start");
        self.nodes[number] = Some(RunningNode { node, _stop: stop });
    }

    pub(crate) async fn stop_node(&mut self, number: usize) {
        let running = self.nodes[number].take().expect("it runs");
        running.node.stop().await;
    }

    pub(crate) fn node(&self, number: usize) -> &Node {
        &self.nodes[number].as_ref().expect("it runs").node
    }

    pub(crate) fn statuses(&self, with_digests: bool) -> Vec<StatusAnswer> {
        self.nodes.iter().flatten().map(|running| running.node.status(with_digests)).collect()
    }

    /// What each node says of its replica of a shard.
    pub(crate) fn replicas(&self, shard: &str) -> Vec<ReplicaStatus> {
        let of_shard = |status: StatusAnswer| status.replicas.into_iter().find(|replica| replica.shard == shard);
        self.statuses(true).into_iter().filter_map(of_shard).collect()
    }

    /// Waits until all nodes serve and all their tasks run.
    pub(crate) async fn wait_ready(&self) {
        let reason = |one: &RunningNode| one.node.not_ready()().or_else(one.node.failing_task());
        let is_ready = async || {
            let reasons: Vec<String> = self.nodes.iter().flatten().filter_map(reason).collect();
            if reasons.is_empty() { Ok(()) } else { Err(reasons) }
        };
        let mut last = Vec::new();
        let waiting = async {
            while let Err(reasons) = is_ready().await {
                last = reasons;
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(CONDITION_TIMEOUT, waiting).await.is_ok(), "not ready: {last:?}");
    }

    /// Which node leads a shard.
    pub(crate) async fn leader(&self, shard: &str) -> usize {
        eventually("there is a leader", async || {
            let leads = |status: &StatusAnswer| {
                status.replicas.iter().any(|one| one.shard == shard && one.leader == one.replica && one.leader != 0)
            };
            let leader =
                self.statuses(false).iter().find(|status| leads(status)).map(|status| status.node_id.clone())?;
            self.config.nodes.iter().position(|node| node.id == leader)
        })
        .await
    }

    /// Until all replicas of every shard have the same state.
    pub(crate) async fn wait_equal_states(&self) {
        for shard in self.config.shards() {
            eventually("replicas are equal", async || {
                let replicas = self.replicas(&shard.id);
                let digests: BTreeSet<_> = replicas.iter().map(|one| (one.applied_index, &one.state_digest)).collect();
                (replicas.len() == 3 && digests.len() == 1 && !replicas[0].state_digest.is_empty()).then_some(())
            })
            .await;
        }
    }

    fn key(&self, shard: u32) -> u32 {
        let locks = self.config.application(Application::Locks).expect("there is one");
        locks.shards[shard as usize].lower_bound
    }

    pub(crate) fn shard_id(&self, shard: u32) -> String {
        let locks = self.config.application(Application::Locks).expect("there is one");
        locks.shards[shard as usize].id.clone()
    }

    pub(crate) async fn send(
        &self,
        shard: u32,
        command: LocksCommand,
        within: Duration,
    ) -> Result<Response, RouteError> {
        self.try_send(shard, command, within).await.map(|outcome| outcome.expect("it is not refused"))
    }

    pub(crate) async fn try_send(
        &self,
        shard: u32,
        command: LocksCommand,
        within: Duration,
    ) -> Result<Result<Response, CommandError>, RouteError> {
        let (command, key) = (Command::Locks(command), self.key(shard));
        let deadline = Instant::now() + within;
        let routed = self.router.command(Application::Locks, key, &command, RetryPolicy::LaterTerm, deadline).await?;
        Ok(routed.reply.outcome)
    }

    /// Opens a namespace by the message of this number.
    pub(crate) async fn open_namespace(&self, shard: u32, number: u64, namespace: NamespaceRef) {
        let message = NamespaceMessage::Open { namespace, limits: Limits::default() };
        let command = LocksCommand::Deliver { source: "test".into(), number, message };
        self.send(shard, command, CONDITION_TIMEOUT).await.expect("it is opened");
    }

    /// The operator's calls to nodes.
    pub(crate) fn operations(&self) -> AdminClient {
        AdminClient::new(ServiceSigner::new(&self.secret, "operator"), Arc::new(TcpDialer))
    }

    /// Takes the lock of that name.
    pub(crate) async fn acquire(&self, shard: u32, name: &str, within: Duration) -> Result<(), RouteError> {
        let answer = self.send(shard, LocksCommand::Acquire(acquire_command(name)), within).await?;
        assert!(matches!(answer, Response::Acquired { outcome: AcquireOutcome::Granted { .. }, .. }), "{answer:?}");
        Ok(())
    }

    /// Every shard grants locks.
    pub(crate) async fn assert_serves(&self, name: &str) {
        for shard in 0..SHARDS {
            self.acquire(shard, name, CONDITION_TIMEOUT).await.unwrap_or_else(|error| panic!("shard {shard}: {error}"));
        }
    }
}

pub(crate) fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "orders".into(), incarnation: Incarnation(1) }
}

/// A request of the process of that name for the lock of that name, for a second.
pub(crate) fn acquire_command(name: &str) -> Acquire {
    Acquire {
        namespace: namespace(),
        ttl_ms: Some(1_000),
        owner: Owner::Process(name.to_owned()),
        claims: vec![Claim { path: Path(vec![name.to_owned()]), mode: Mode::Write }],
        transition_ms: 0,
        metadata: Metadata::new(),
        fencing_token: None,
        requested_expires_at_ns: None,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: None,
        attempt: 0,
        message: None,
    }
}
