//! One node with a runtime of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_replication::{
    Credentials, DialError, DialFn, Group, GroupManager, GroupManagerOptions, GroupOptions, KnownRules, PeerConfig,
    Timing,
};
use holdfast_storage::{Identity, MemoryDisk, NodeStore, StorageError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server};

use super::journal::Journal;
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

/// The rules that nodes know, unless a test wants it otherwise.
pub(crate) const RULES: KnownRules = KnownRules { lowest: 1, highest: 2 };

/// A token that every member knows.
pub(crate) struct Token(pub(crate) &'static str);

impl Credentials for Token {
    fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    fn accepts(&self, authorization: &str) -> bool {
        authorization == format!("Bearer {}", self.0)
    }
}

/// Who a node says it is, when a test wants it to lie.
#[derive(Clone)]
pub(crate) struct NodeIdentity {
    pub(crate) node: String,
    pub(crate) cluster_id: String,
    pub(crate) token: &'static str,
    /// Of the release that it runs.
    pub(crate) timing: Timing,
    pub(crate) rules: KnownRules,
}

impl NodeIdentity {
    pub(crate) fn honest(index: usize) -> Self {
        Self {
            node: node_id(index),
            cluster_id: CLUSTER_ID.into(),
            token: "secret",
            timing: Timing::default(),
            rules: RULES,
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

pub(crate) fn dialer() -> DialFn {
    Arc::new(|address| {
        Box::pin(async move {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
            let endpoint = endpoint.tcp_nodelay(true);
            endpoint
                .connect()
                .await
                .map_err(|error| DialError { is_refused: is_refused(&error), reason: error.to_string() })
        })
    })
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    })
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
    let rules = claims.rules;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let host = GroupManager::start(GroupManagerOptions {
        restored_from: None,
        node: claims.node,
        cluster_id: claims.cluster_id,
        replicas: groups.iter().map(|options| options.replica).collect(),
        peers,
        rules,
        allowed_rules: None,
        store,
        dialer: dialer(),
        credentials: Arc::new(Token(claims.token)),
        timing: claims.timing,
    })
    .expect("the host starts");
    let service = host.service();
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(async move {
        Server::builder().tcp_nodelay(true).add_service(service).serve_with_incoming(incoming).await
    });
    let mut started = Vec::new();
    for options in groups {
        let machine = Arc::new(Journal::with_rules(rules));
        started.push((host.start_group(options, machine.clone()).await.expect("the replica starts"), machine));
    }
    (host, started, address)
}

/// Between two looks at a directory that is in use.
async fn wait_for_the_other_process() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}
