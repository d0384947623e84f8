//! A running node.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::join_all;
use holdfast_auth::ServiceSigner;
use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_proto::internal::StatusAnswer;
use holdfast_replication::{DialError, Dialer, Host, HostOptions, KnownRules, Peer};
use holdfast_routing::{ConnectError, Connector, Router, RoutingOptions};
use holdfast_storage::{NodeStore, StorageError};
use holdfast_supervise::{Owner, TaskSet};
use parking_lot::RwLock;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::connections::Connections;
use crate::credentials::ServiceCredentials;
use crate::error::NodeError;
use crate::figures;
use crate::machine::Observer;
use crate::memory::NodeMemory;
use crate::operations::OperationsServer;
use crate::options::NodeOptions;
use crate::replica::Replica;
use crate::revival::LeftOut;
use crate::router::Delivery;
use crate::service::CallService;
use crate::topology::{self, Starting};
use crate::{restore, status, stored_config};

/// How long handing over leaderships may take when the node stops.
const HAND_OVER: Duration = Duration::from_secs(3);

/// A node with its replicas. It listens nowhere itself: whoever runs it serves [`Node::routes`].
pub struct Node {
    shared: Arc<Shared>,
    observer: Option<Arc<dyn Observer>>,
}

/// What is kept beside the store.
#[derive(Default)]
struct Kept {
    data_dir: Option<PathBuf>,
    /// The backup that the data came from.
    restored_from: Option<String>,
}

/// What the services of a node share.
pub(crate) struct Shared {
    /// First, so that tasks end before what they work with.
    pub(crate) tasks: TaskSet,
    pub(crate) node_id: String,
    /// Of this program.
    pub(crate) release: String,
    /// The config in use.
    pub(crate) map: watch::Sender<Arc<ShardMap>>,
    /// Where a config that comes while the node runs is kept; nowhere in a simulation.
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) store: NodeStore,
    pub(crate) credentials: Arc<ServiceCredentials>,
    pub(crate) connections: Connections,
    pub(crate) host: Host,
    /// Those that this program knows.
    pub(crate) rules: KnownRules,
    pub(crate) delivery: Delivery,
    pub(crate) replicas: RwLock<HashMap<u64, Arc<Replica>>>,
    /// Those that don't run with this release.
    pub(crate) left_out: RwLock<BTreeMap<u64, Arc<LeftOut>>>,
    /// How replicas are started; set once they are.
    pub(crate) starting: OnceLock<Starting>,
    /// One change of the config after the other.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// What all replicas keep.
    pub(crate) memory: NodeMemory,
    stopping: AtomicBool,
}

impl Shared {
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

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Node {
    /// Opens the store and prepares the replicas. Nothing runs before [`Node::start_replicas`].
    ///
    /// # Errors
    /// When the config, the node id or the data directory is refused. Nothing was changed then.
    pub fn open(options: &NodeOptions, connector: Arc<dyn Connector>) -> Result<Self, NodeError> {
        let restored_from = restore::restored_from(&options.data_dir)?;
        let config = stored_config::latest(&options.data_dir, options.cluster_config.clone())?;
        let map = shard_map(config, &options.node_id)?;
        let store = NodeStore::open(&options.data_dir, &options.identity())?;
        store.keep_free(options.disk_reserve);
        Self::assemble(options, map, store, connector, Kept { data_dir: Some(options.data_dir.clone()), restored_from })
    }

    /// As [`Node::open`], over a store that was opened already with [`NodeOptions::identity`]. The data directory of
    /// the options is not used.
    ///
    /// # Errors
    /// When the config, the node id or the store is refused.
    pub fn with_store(
        options: &NodeOptions,
        store: NodeStore,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, NodeError> {
        let map = shard_map(options.cluster_config.clone(), &options.node_id)?;
        Self::assemble(options, map, store, connector, Kept::default())
    }

    fn assemble(
        options: &NodeOptions,
        map: ShardMap,
        store: NodeStore,
        connector: Arc<dyn Connector>,
        kept: Kept,
    ) -> Result<Self, NodeError> {
        let (known, seen) = (options.rules, store.highest_rules());
        if seen > known.highest {
            return Err(NodeError::LaterRules { data_dir: options.data_dir.clone(), seen, known });
        }
        let cluster_id = options.cluster_secret.cluster_id();
        let process = format!("node {}", options.node_id);
        let credentials = Arc::new(ServiceCredentials::new(&options.cluster_secret, &process));
        let replicas: Vec<u64> = replica_ids(&map, &options.node_id);
        let host = Host::start(HostOptions {
            node: options.node_id.clone(),
            cluster_id,
            replicas,
            rules: known,
            allowed_rules: map.config().rules,
            peers: peers(&map, &options.node_id),
            restored_from: kept.restored_from,
            store: store.clone(),
            dialer: dialer(Arc::clone(&connector)),
            credentials: credentials.clone(),
            timing: options.timing,
        })?;
        let signer = ServiceSigner::new(&options.cluster_secret, process);
        let caller = uuid::Uuid::new_v4().to_string();
        let router = Router::start(map.clone(), signer, caller, connector, RoutingOptions::default());
        let shared = Arc::new(Shared {
            tasks: TaskSet::new(Owner::process()),
            node_id: options.node_id.clone(),
            release: options.release.clone(),
            map: watch::Sender::new(Arc::new(map.clone())),
            data_dir: kept.data_dir,
            store,
            credentials,
            connections: Connections::default(),
            host,
            rules: known,
            delivery: Delivery::new(router, map),
            replicas: RwLock::default(),
            left_out: RwLock::default(),
            starting: OnceLock::new(),
            changing: tokio::sync::Mutex::default(),
            memory: NodeMemory::new(options.memory_limit),
            stopping: AtomicBool::new(false),
        });
        Ok(Self { shared, observer: None })
    }

    /// Shows the observer everything that the replicas of this node apply from their start on.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Starts the replicas from what the store holds, and forms the groups that were never formed.
    ///
    /// # Errors
    /// When the data of a replica can't be read.
    pub async fn start_replicas(&self, options: &NodeOptions) -> Result<(), NodeError> {
        let shared = &self.shared;
        let _turn = shared.changing.lock().await;
        // Set once: replicas are started once.
        let starting = shared.starting.get_or_init(|| Starting::new(options, self.observer.clone()));
        let map = shared.map();
        for place in map.replicas_of_node(&shared.node_id) {
            shared.begin_replica(starting, topology::place_of(&place, true)).await?;
        }
        shared.retire_leftovers();
        let (weak, later) = (Arc::downgrade(shared), shared.delivery.router().later_configs());
        shared.tasks.keep("config", move || topology::follow_news(Weak::clone(&weak), later.clone()));
        let weak = Arc::downgrade(shared);
        shared.tasks.keep("figures", move || figures::keep(Weak::clone(&weak)));
        Ok(())
    }

    /// The gRPC services of the node.
    pub fn routes(&self) -> Routes {
        Routes::new(self.shared.host.service())
            .add_service(CallService::new(Arc::clone(&self.shared)))
            .add_service(OperationsServer::new(Arc::clone(&self.shared)))
    }

    /// Why the node can't serve, if it can't.
    pub fn not_ready(&self) -> impl Fn() -> Option<String> + Clone + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || status::not_ready(&shared)
    }

    /// The node and every replica of it as they are now; with digests of their states when asked.
    pub fn status(&self, with_digests: bool) -> StatusAnswer {
        status::answer(&self.shared, with_digests)
    }

    /// The replicas of this node that lead now, with their terms.
    pub fn leads(&self) -> Vec<(u64, u64)> {
        self.led().map(|(replica, term)| (replica.group.replica(), term)).collect()
    }

    /// Every replica of this node that has won an election, with its shard and the term, whether or not it serves by now.
    pub fn elected(&self) -> Vec<(String, u64, u64)> {
        let elected = |replica: &Arc<Replica>| {
            let (shard, id) = (replica.group.shard().to_owned(), replica.group.replica());
            replica.group.elected_in().map(|term| (shard, id, term))
        };
        self.shared.replicas().iter().filter_map(elected).collect()
    }

    /// Shards whose state this node would answer from under its lease just now, and in which term.
    pub fn leases(&self) -> Vec<(String, u64)> {
        let held = self.led().filter(|(replica, term)| replica.group.has_lease(*term));
        held.map(|(replica, term)| (replica.group.shard().to_owned(), term)).collect()
    }

    fn led(&self) -> impl Iterator<Item = (Arc<Replica>, u64)> {
        let term = |replica: &Arc<Replica>| replica.group.leadership().borrow().map(|leads| leads.term);
        self.shared.replicas().into_iter().filter_map(move |replica| term(&replica).map(|term| (replica, term)))
    }

    /// Becomes `Some` when the store has failed for good and the node must stop.
    pub fn store_failure(&self) -> watch::Receiver<Option<StorageError>> {
        self.shared.store.failed()
    }

    /// Stops: hands leaderships over first, so that callers notice as little as can be, then ends everything and closes
    /// the store.
    pub async fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.tasks.end();
        let replicas = self.shared.replicas();
        let handed = join_all(replicas.iter().map(|replica| replica.group.hand_over(HAND_OVER))).await;
        let kept = handed.iter().filter(|gone| !**gone).count();
        tracing::info!(replicas = replicas.len(), still_leading = kept, "leaderships handed over");
        self.shared.connections.end_all();
        self.shared.tasks.ended().await;
        self.shared.host.shutdown().await;
        self.shared.delivery.shutdown().await;
        self.shared.store.close().await;
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

pub(crate) fn peers(map: &ShardMap, node: &str) -> Vec<Peer> {
    let others = map.config().nodes.iter().filter(|other| other.id != node);
    others
        .map(|other| Peer {
            node: other.id.clone(),
            address: other.address.clone(),
            replicas: replica_ids(map, &other.id),
        })
        .collect()
}

fn dial_error(error: ConnectError) -> DialError {
    DialError { is_refused: error.is_refused(), reason: error.to_string() }
}

fn dialer(connector: Arc<dyn Connector>) -> Dialer {
    Arc::new(move |address| {
        let connecting = connector.connect(&address);
        Box::pin(async move { connecting.await.map_err(dial_error) })
    })
}
