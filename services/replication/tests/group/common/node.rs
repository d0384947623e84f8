//! One node with a runtime of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_auth::{ClusterSecret, ServiceSigner, ServiceVerifier};
use holdfast_replication::{Group, GroupManager, GroupManagerOptions, GroupOptions, KnownRules, PeerConfig, Timing};
use holdfast_rpc::{Acceptor, Callers, Incoming, TcpDialer};
use holdfast_storage::{Identity, MemoryDisk, NodeStore, StorageError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::journal::{Ballast, Journal};
use super::{CLUSTER_ID, eventually, node_id};

/// A disk that outlives the node that uses it.
pub(crate) enum Disk {
    Rocks(tempfile::TempDir),
    Memory(MemoryDisk),
}

impl Disk {
    pub(crate) fn rocks() -> Self {
        Self::Rocks(tempfile::tempdir().expect("a temporary directory"))
    }

    pub(crate) fn memory(&self) -> &MemoryDisk {
        match self {
            Self::Memory(disk) => disk,
            Self::Rocks(_) => panic!("this disk is not in memory"),
        }
    }
}

/// Tells each start of a node from the next.
static RUNS: AtomicU64 = AtomicU64::new(1);

/// The rules that nodes know, unless a test wants it otherwise.
pub(crate) const RULES: KnownRules = KnownRules { lowest: 1, highest: 2 };

/// The cluster secret of that name.
pub(crate) fn secret(name: &str) -> ClusterSecret {
    let digits: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    ClusterSecret::from_hex(&format!("{digits:0>64}")).expect("it is short")
}

/// Who a node says it is, when a test wants it to lie.
#[derive(Clone)]
pub(crate) struct NodeIdentity {
    pub(crate) node: String,
    pub(crate) cluster_id: String,
    /// The name of its cluster secret.
    pub(crate) secret: &'static str,
    /// Of the release that it runs.
    pub(crate) timing: Timing,
    pub(crate) rules: KnownRules,
    pub(crate) ballast: Ballast,
}

impl NodeIdentity {
    pub(crate) fn honest(index: usize) -> Self {
        Self {
            node: node_id(index),
            cluster_id: CLUSTER_ID.into(),
            secret: "secret",
            timing: Timing::default(),
            rules: RULES,
            ballast: Ballast::default(),
        }
    }
}

pub(crate) struct Node {
    pub(crate) manager: GroupManager,
    pub(crate) group: Group,
    pub(crate) machine: Arc<Journal>,
    /// Replicas of further groups.
    pub(crate) more: Vec<(Group, Arc<Journal>)>,
    pub(crate) store: NodeStore,
    pub(crate) address: SocketAddr,
    /// Present until the node is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Node {
    /// Starts a node with a replica of each group.
    pub(crate) async fn start_as(
        claims: NodeIdentity,
        disk: &Disk,
        peers: Vec<PeerConfig>,
        groups: Vec<GroupOptions>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(claims.node.clone())
            .enable_all()
            .build()
            .expect("a runtime starts");
        let store = open(&runtime, disk, &claims).await;
        let starting = start(claims, store.clone(), peers, groups);
        let (manager, mut started, address) = runtime.spawn(starting).await.expect("the node starts");
        let more = started.split_off(1);
        let (group, machine) = started.pop().expect("there is a first one");
        Self { manager, group, machine, more, store, address, runtime: Some(runtime) }
    }

    /// What the node's runtime is doing.
    pub(crate) fn tasks(&self) -> tokio::runtime::RuntimeMetrics {
        self.runtime.as_ref().expect("the node runs").metrics()
    }

    /// Stops the replica of the first group and starts it again from its store, with another machine.
    pub(crate) async fn restart_group(&mut self, options: GroupOptions) {
        let (host, machine) = (self.manager.clone(), Arc::<Journal>::default());
        let fresh = Arc::clone(&machine);
        let starting = async move {
            host.stop_group(options.replica).await;
            host.start_group(options, fresh).await.expect("the replica starts again")
        };
        let runtime = self.runtime.as_ref().expect("the node runs");
        self.group = runtime.spawn(starting).await.expect("it does not panic");
        self.machine = machine;
    }

    /// Lets go of the machine, so that a test sees whether anybody else holds it.
    pub(crate) fn release_machine(&mut self) {
        self.machine = Arc::default();
    }

    /// Ends everything at once; what is not synced is lost.
    pub(crate) async fn kill(self, disk: &Disk) {
        if let Disk::Memory(disk) = disk {
            disk.crash();
        }
    }
}

async fn open(runtime: &Runtime, disk: &Disk, claims: &NodeIdentity) -> NodeStore {
    let identity = Identity { cluster_id: claims.cluster_id.clone(), node_id: claims.node.clone() };
    eventually("the store opens", || async {
        let opened = match disk {
            Disk::Rocks(directory) => NodeStore::open(&directory.path().join("data"), &identity),
            Disk::Memory(disk) => {
                let (disk, identity) = (disk.clone(), identity.clone());
                runtime.spawn(async move { NodeStore::in_memory(&disk, &identity) }).await.expect("it does not panic")
            }
        };
        match opened {
            Ok(store) => Some(store),
            // The process that was killed is still on its way out.
            Err(StorageError::InUse { .. }) => {
                wait_for_the_other_process().await;
                None
            }
            Err(error) => panic!("{error}"),
        }
    })
    .await
}

async fn start(
    claims: NodeIdentity,
    store: NodeStore,
    peers: Vec<PeerConfig>,
    groups: Vec<GroupOptions>,
) -> (GroupManager, Vec<(Group, Arc<Journal>)>, SocketAddr) {
    let (rules, ballast) = (claims.rules, claims.ballast);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let (secret, callers) = (secret(claims.secret), Arc::<Callers>::default());
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let identity = holdfast_rpc::Identity::new(claims.node.clone(), run, ServiceSigner::new(&secret, "test"));
    let host = GroupManager::start(GroupManagerOptions {
        restored_from: None,
        node: claims.node,
        cluster_id: claims.cluster_id,
        replicas: groups.iter().map(|options| options.replica).collect(),
        peers,
        rules,
        allowed_rules: None,
        store,
        dialer: Arc::new(TcpDialer),
        identity: Arc::new(identity),
        callers: Arc::clone(&callers),
        timing: claims.timing,
    })
    .expect("the host starts");
    let acceptor = host.accept_on(Acceptor::new(Arc::new(ServiceVerifier::new(&secret)), callers));
    let accepting = futures::stream::unfold(listener, |listener| async {
        let (stream, _) = listener.accept().await.expect("it listens");
        stream.set_nodelay(true).expect("it is TCP");
        Some((Incoming { stream: Box::new(stream), peer: (), has_cert: true, counted: None }, listener))
    });
    tokio::spawn(Arc::new(acceptor).serve(accepting, |_, ()| async {}));
    let mut started = Vec::new();
    for options in groups {
        let machine = Arc::new(Journal::with_rules(rules).with_ballast(ballast));
        started.push((host.start_group(options, machine.clone()).await.expect("the replica starts"), machine));
    }
    (host, started, address)
}

/// Between two looks at a directory that is in use.
async fn wait_for_the_other_process() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}
