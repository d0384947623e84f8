//! A running node.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::join_all;
use holdfast_auth::{ServiceSigner, ServiceVerifier};
use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_proto::internal::StatusAnswer;
use holdfast_replication::{GroupManager, GroupManagerOptions, KnownRules, PeerConfig};
use holdfast_routing::{Dialer, LocalNode, Router, RoutingOptions};
use holdfast_rpc::{Acceptor, Callers, Calls, Identity, Responder};
use holdfast_storage::{NodeStore, StorageError};
use holdfast_supervise::{TaskOwner, TaskSet};
use parking_lot::RwLock;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Status};
use uuid::Uuid;

use crate::admin_server::AdminServer;
use crate::call_handler::NodeCalls;
use crate::error::NodeError;
use crate::machine::ApplyObserver;
use crate::memory::NodeMemory;
use crate::metrics;
use crate::node_server::NodeServer;
use crate::options::NodeOptions;
use crate::outbox_sender::OutboxSender;
use crate::reconfigure::{self, ReplicaOptions};
use crate::replica::Replica;
use crate::replica_supervisor::PoisonedReplica;
use crate::run_markers::RunMarkers;
use crate::{leadership_return, restore, status, stored_config};

/// Timeout of leadership transfers when the node stops.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);

/// A node with its replicas. It does not listen: see [`serve`](crate::serve).
pub struct Node {
    shared: Arc<NodeInner>,
    observer: Option<Arc<dyn ApplyObserver>>,
}

/// State kept beside the store.
#[derive(Default)]
struct DataDirInfo {
    data_dir: Option<PathBuf>,
    /// The backup that the data was restored from.
    restored_from: Option<String>,
    run_markers: Option<RunMarkers>,
}

/// State shared by the services of a node.
pub(crate) struct NodeInner {
    /// First, so that tasks end before the state that they use.
    pub(crate) tasks: TaskSet,
    pub(crate) node_id: String,
    /// The release of this program.
    pub(crate) release: String,
    /// The random number of this process.
    pub(crate) run: u64,
    /// The current config.
    pub(crate) map: watch::Sender<Arc<ShardMap>>,
    /// Where the node stores a config received while it runs; `None` in a simulation.
    pub(crate) data_dir: Option<PathBuf>,
    /// What the node notes in its data directory for its next start.
    pub(crate) run_markers: Option<RunMarkers>,
    pub(crate) store: NodeStore,
    pub(crate) verifier: Arc<ServiceVerifier>,
    /// The processes that are connected.
    pub(crate) callers: Arc<Callers>,
    pub(crate) group_manager: GroupManager,
    /// The rules that this program knows.
    pub(crate) rules: KnownRules,
    pub(crate) outbox_sender: OutboxSender,
    pub(crate) replicas: RwLock<HashMap<u64, Arc<Replica>>>,
    /// Replicas that this release does not run.
    pub(crate) poisoned_replicas: RwLock<BTreeMap<u64, Arc<PoisonedReplica>>>,
    /// How replicas are started; set by [`Node::start_replicas`].
    pub(crate) replica_options: OnceLock<ReplicaOptions>,
    /// Serializes config changes.
    pub(crate) config_lock: tokio::sync::Mutex<()>,
    /// Memory usage of all replicas.
    pub(crate) memory: NodeMemory,
    /// The same of lock tables that are in no log.
    pub(crate) table_memory: NodeMemory,
    /// True from the first time that the node is ready until it stops.
    pub(crate) is_serving: Arc<AtomicBool>,
    stopping: AtomicBool,
}

impl NodeInner {
    pub(crate) fn replica(&self, id: u64) -> Option<Arc<Replica>> {
        self.replicas.read().get(&id).cloned()
    }

    pub(crate) fn replicas(&self) -> Vec<Arc<Replica>> {
        let mut replicas: Vec<_> = self.replicas.read().values().cloned().collect();
        replicas.sort_by_key(|replica| replica.group.replica());
        replicas
    }

    pub(crate) fn map(&self) -> Arc<ShardMap> {
        Arc::clone(&self.map.borrow())
    }

    /// Requires a service token of the cluster.
    pub(crate) fn authorize<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let value = request.metadata().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        match value.strip_prefix("Bearer ").map(|token| self.verifier.verify(token)) {
            Some(Ok(_)) => Ok(()),
            _ => Err(Status::unauthenticated(
                "the call carries no service token of this cluster; do both have the same secret?",
            )),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Node {
    /// Opens the store and prepares the replicas. Nothing runs before [`Node::start_replicas`].
    ///
    /// # Errors
    /// When the config, the node id or the data directory is invalid. Nothing was changed then.
    pub fn open(options: &NodeOptions, connector: Arc<dyn Dialer>) -> Result<Self, NodeError> {
        let restored_from = restore::restored_from(&options.data_dir)?;
        if !stored_config::is_kept(&options.data_dir) {
            shard_map(options.cluster_config.clone(), &options.node_id)?;
        }
        // It says whose data this is, before configs are compared.
        let store = NodeStore::open(&options.data_dir, &options.identity())?;
        let config = stored_config::load_latest(&options.data_dir, options.cluster_config.clone())?;
        let map = shard_map(config, &options.node_id)?;
        stored_config::store_if_changed(&options.data_dir, map.config())?;
        store.set_reserve(options.disk_reserve);
        let run_markers = RunMarkers::begin(&options.data_dir, options.clocks.wall_ms());
        let run_markers = run_markers.inspect_err(|error| tracing::warn!(%error, "run note not written")).ok();
        Self::assemble(
            options,
            map,
            store,
            connector,
            DataDirInfo { data_dir: Some(options.data_dir.clone()), restored_from, run_markers },
        )
    }

    /// As [`Node::open`], with a store already opened with [`NodeOptions::identity`]. The data directory of the options
    /// is not used.
    ///
    /// # Errors
    /// When the config, the node id or the store is invalid.
    pub fn with_store(options: &NodeOptions, store: NodeStore, connector: Arc<dyn Dialer>) -> Result<Self, NodeError> {
        let map = shard_map(options.cluster_config.clone(), &options.node_id)?;
        Self::assemble(options, map, store, connector, DataDirInfo::default())
    }

    fn assemble(
        options: &NodeOptions,
        map: ShardMap,
        store: NodeStore,
        connector: Arc<dyn Dialer>,
        kept: DataDirInfo,
    ) -> Result<Self, NodeError> {
        let (known, seen) = (options.rules, store.highest_rules());
        if seen > known.highest {
            return Err(NodeError::UnsupportedRules { data_dir: options.data_dir.clone(), seen, known });
        }
        let cluster_id = options.cluster_secret.cluster_id();
        let process = format!("node {}", options.node_id);
        let signer = || ServiceSigner::new(&options.cluster_secret, process.clone());
        let callers = Arc::<Callers>::default();
        let run = Uuid::new_v4().as_u64_pair().0;
        let replicas: Vec<u64> = replica_ids(&map, &options.node_id);
        let group_manager = GroupManager::start(GroupManagerOptions {
            node: options.node_id.clone(),
            cluster_id,
            replicas,
            rules: known,
            allowed_rules: map.config().rules,
            peers: peers(&map, &options.node_id),
            restored_from: kept.restored_from,
            store: store.clone(),
            dialer: Arc::clone(&connector),
            identity: Arc::new(Identity::new(options.node_id.clone(), run, signer())),
            callers: Arc::clone(&callers),
            timing: options.timing,
        })?;
        let caller = Uuid::new_v4().to_string();
        let shared = Arc::new_cyclic(|node| {
            // Messages to shards that this node leads stay in the process.
            let handler = Arc::new(NodeCalls(Weak::clone(node)));
            let local = Some(LocalNode { node_id: options.node_id.clone(), handler });
            let routing = RoutingOptions { router: "node", ..RoutingOptions::default() };
            let router = Router::start(map.clone(), signer(), caller, connector, routing, local);
            NodeInner {
                tasks: TaskSet::new(TaskOwner::process()),
                node_id: options.node_id.clone(),
                release: options.release.clone(),
                run,
                map: watch::Sender::new(Arc::new(map.clone())),
                data_dir: kept.data_dir,
                run_markers: kept.run_markers,
                store,
                verifier: Arc::new(ServiceVerifier::new(&options.cluster_secret)),
                callers,
                group_manager,
                rules: known,
                outbox_sender: OutboxSender::new(router, map),
                replicas: RwLock::default(),
                poisoned_replicas: RwLock::default(),
                replica_options: OnceLock::new(),
                config_lock: tokio::sync::Mutex::default(),
                memory: NodeMemory::new(options.memory_limit),
                table_memory: NodeMemory::of_tables(options.soft_memory),
                is_serving: Arc::default(),
                stopping: AtomicBool::new(false),
            }
        });
        Ok(Self { shared, observer: None })
    }

    /// Passes every entry that this node's replicas apply to the observer, from their start.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn ApplyObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Starts the replicas from the store, and bootstraps groups that were never formed.
    ///
    /// # Errors
    /// When the data of a replica can't be read.
    pub async fn start_replicas(&self, options: &NodeOptions) -> Result<(), NodeError> {
        let shared = &self.shared;
        let _turn = shared.config_lock.lock().await;
        // Set once, because replicas are started once.
        let starting = shared.replica_options.get_or_init(|| ReplicaOptions::new(options, self.observer.clone()));
        shared.store_fatal_step().await?;
        let map = shared.map();
        for place in map.replicas_of_node(&shared.node_id) {
            shared.start_supervised_replica(starting, reconfigure::replica_spec(&map, &place, true)).await?;
        }
        shared.remove_stale_replicas();
        let (weak, later) = (Arc::downgrade(shared), shared.outbox_sender.router().config_updates());
        shared
            .tasks
            .spawn_restarting("config", move || reconfigure::apply_config_updates(Weak::clone(&weak), later.clone()));
        let weak = Arc::downgrade(shared);
        shared.tasks.spawn_restarting("lock_metrics", move || metrics::run(Weak::clone(&weak)));
        if let Some(after) = options.leader_return_after {
            let weak = Arc::downgrade(shared);
            let run = move || leadership_return::run(Weak::clone(&weak), after);
            shared.tasks.spawn_restarting("leadership_return", run);
        }
        let weak = Arc::downgrade(shared);
        shared.tasks.spawn_until_done("readiness", move || status::report_ready(Weak::clone(&weak)));
        Ok(())
    }

    /// Returns the gRPC services of the node.
    pub(crate) fn routes(&self) -> Routes {
        Routes::new(NodeServer::new(Arc::clone(&self.shared))).add_service(AdminServer::new(Arc::clone(&self.shared)))
    }

    /// Returns the node as the target of calls from its own process.
    pub fn local(&self) -> LocalNode {
        let handler = Arc::new(NodeCalls(Arc::downgrade(&self.shared)));
        LocalNode { node_id: self.shared.node_id.clone(), handler }
    }

    /// Returns the cluster config in use: the given one, or a later one that was stored or received.
    pub fn cluster_config(&self) -> ClusterConfig {
        self.shared.map().config().clone()
    }

    /// Returns the map of the cluster config in use, and of later ones.
    pub(crate) fn subscribe_map(&self) -> watch::Receiver<Arc<ShardMap>> {
        self.shared.map.subscribe()
    }

    /// Returns the acceptor of connections of gateways and peers.
    pub(crate) fn acceptor(&self) -> Arc<Acceptor> {
        let calls = Arc::new(NodeCalls(Arc::downgrade(&self.shared)));
        let acceptor = Acceptor::new(Arc::clone(&self.shared.verifier), Arc::clone(&self.shared.callers));
        Arc::new(self.shared.group_manager.accept_on(acceptor.with(Responder::new(calls))))
    }

    /// Returns the reason why the node can't serve, if any.
    pub fn not_ready(&self) -> impl Fn() -> Option<String> + Clone + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || status::not_ready(&shared)
    }

    /// Returns the problem of a failed task that the node can serve without, if any.
    pub fn failing_task(&self) -> impl Fn() -> Option<String> + Clone + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || status::failing_task(&shared)
    }

    /// Returns the ids of the shards that have failed on this node and, as far as is known, on all others. The node is
    /// ready without them.
    pub fn down_shards(&self) -> impl Fn() -> Vec<String> + Clone + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || status::down_shards(&shared)
    }

    /// Returns the status of the node and its replicas, with digests of their states on request.
    pub fn status(&self, with_digests: bool) -> StatusAnswer {
        status::collect(&self.shared, with_digests)
    }

    /// Returns the replicas of this node that lead now, with their terms.
    pub fn led_replicas(&self) -> Vec<(u64, u64)> {
        self.led().map(|(replica, term)| (replica.group.replica(), term)).collect()
    }

    /// Returns every replica of this node that won an election, with its group and term, whether or not it already
    /// serves.
    pub fn elected(&self) -> Vec<(String, u64, u64)> {
        let elected = |replica: &Arc<Replica>| {
            let (group, id) = (replica.group.id().to_owned(), replica.group.replica());
            replica.group.elected_term().map(|term| (group, id, term))
        };
        self.shared.replicas().iter().filter_map(elected).collect()
    }

    /// Returns the groups that this node would serve under its lease now, with their terms.
    pub fn held_leases(&self) -> Vec<(String, u64)> {
        let held = self.led().filter(|(replica, term)| replica.group.has_lease(*term));
        held.map(|(replica, term)| (replica.group.id().to_owned(), term)).collect()
    }

    fn led(&self) -> impl Iterator<Item = (Arc<Replica>, u64)> {
        let term = |replica: &Arc<Replica>| replica.group.subscribe_leadership().borrow().map(|leads| leads.term);
        self.shared.replicas().into_iter().filter_map(move |replica| term(&replica).map(|term| (replica, term)))
    }

    /// Completes when the store has failed for good and the node must stop.
    pub async fn store_failure(&self) -> StorageError {
        let mut failure = self.shared.store.failed();
        match failure.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(Some(error)) => error,
            // The store lives as long as this node, and fails at most once.
            _ => std::future::pending().await,
        }
    }

    /// Prepares to stop: the node is not ready any more, and transfers its leaderships. It continues to serve calls,
    /// and to redirect those to shards that it led. Takes at most 3 s.
    pub async fn transfer_leaderships(&self) {
        let is_first = !self.shared.stopping.swap(true, Ordering::AcqRel);
        self.shared.is_serving.store(false, Ordering::Relaxed);
        self.shared.tasks.cancel();
        let replicas = self.shared.replicas();
        let handed = join_all(replicas.iter().map(|replica| replica.group.transfer_leadership(TRANSFER_TIMEOUT))).await;
        let kept = handed.iter().filter(|gone| !**gone).count();
        if is_first || kept > 0 {
            tracing::info!(replicas = replicas.len(), still_leading = kept, "leaderships transferred");
        }
    }

    /// Stops the node: transfers leaderships first to limit the disruption for callers, including leaderships gained
    /// since an earlier [`Node::transfer_leaderships`]; then ends everything and closes the store.
    pub async fn stop(&self) {
        self.transfer_leaderships().await;
        self.shared.outbox_sender.shutdown().await;
        self.shared.callers.close::<Calls>();
        self.shared.tasks.shutdown().await;
        self.shared.group_manager.shutdown().await;
        self.shared.store.close().await;
        if let Some(notes) = &self.shared.run_markers {
            notes.end();
        }
    }
}

pub(crate) fn shard_map(config: ClusterConfig, node: &str) -> Result<ShardMap, NodeError> {
    let map = ShardMap::new(config)?;
    if map.node(node).is_none() {
        let known: Vec<&str> = map.config().nodes.iter().map(|node| node.id.as_str()).collect();
        return Err(NodeError::UnknownNode { node: node.to_owned(), known: known.join(", ") });
    }
    Ok(map)
}

pub(crate) fn replica_ids(map: &ShardMap, node: &str) -> Vec<u64> {
    map.replicas_of_node(node).iter().map(|place| place.replica.id).collect()
}

pub(crate) fn peers(map: &ShardMap, node: &str) -> Vec<PeerConfig> {
    let others = map.config().nodes.iter().filter(|other| other.id != node);
    others
        .map(|other| PeerConfig {
            node: other.id.clone(),
            address: other.address.clone(),
            replicas: replica_ids(map, &other.id),
        })
        .collect()
}
