//! Nodes of one group in this process, over the loopback interface.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, select_all};
use futures::{FutureExt, stream};
use holdfast_auth::{ClusterSecret, ServiceSigner, ServiceVerifier};
use holdfast_core::{Application, Rules, codec};
use holdfast_node::{GroupMachine, ShardMachine};
use holdfast_replication::{
    Clocks, Group, GroupManager, GroupManagerOptions, GroupOptions, KnownRules, LogLimits, PeerConfig, Timing,
};
use holdfast_rpc::{Acceptor, Callers, Incoming, TcpDialer};
use holdfast_storage::{Identity, NodeStore};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{HOUR_MS, SHARD, acquire, open, release};

/// Of the only shard of the group.
const SHARD_NUMBER: u32 = 0;
const DEADLINE: Duration = Duration::from_secs(10);

/// Who the owner of a node's data is.
pub(crate) fn identity(node: usize) -> Identity {
    Identity { cluster_id: "bench".to_owned(), node_id: format!("nd_{node}") }
}

/// The leader of a group, and all nodes.
pub(crate) struct Leader {
    group: Group,
    term: u64,
    managers: Vec<GroupManager>,
}

impl Leader {
    /// Starts a node on each store, in the order of their numbers, forms the group, and waits for its leader.
    pub(crate) async fn start(stores: Vec<NodeStore>) -> Self {
        let secret = ClusterSecret::generate().expect("there are random numbers");
        let listeners = join_all(stores.iter().map(|_| TcpListener::bind("127.0.0.1:0"))).await;
        let listeners: Vec<TcpListener> = listeners.into_iter().map(|bound| bound.expect("a port is free")).collect();
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
        let addresses: Vec<String> = listeners.iter().map(address).collect();
        let (mut groups, mut managers) = (Vec::new(), Vec::new());
        for (node, (store, listener)) in stores.into_iter().zip(listeners).enumerate() {
            let (manager, group) = start_node(node, store, listener, &addresses, &secret).await;
            groups.push(group);
            managers.push(manager);
        }
        managers[0].bootstrap(&groups[0]).await.expect("the group forms");
        let leading = groups.iter().map(|group| {
            let (group, mut leadership) = (group.clone(), group.subscribe_leadership());
            async move {
                let leads = *leadership.wait_for(Option::is_some).await.expect("the replica runs");
                (group, leads.expect("it was waited for").term)
            }
            .boxed()
        });
        let ((group, term), _, _) = select_all(leading).await;
        let leader = Self { group, term, managers };
        leader.propose(codec::encode(&open()).into()).await;
        leader
    }

    async fn propose(&self, command: Bytes) {
        let reply = self.group.propose(SHARD_NUMBER, self.term, command, Instant::now() + DEADLINE).await;
        reply.expect("the command is applied");
    }

    /// One pair by each of so many clients at a time.
    pub(crate) async fn pairs(&self, commands: &[(Bytes, Bytes)]) {
        let pair = async |(take, give): &(Bytes, Bytes)| {
            self.propose(take.clone()).await;
            self.propose(give.clone()).await;
        };
        join_all(commands.iter().map(pair)).await;
    }

    /// Stops all nodes.
    pub(crate) async fn shutdown(&self) {
        join_all(self.managers.iter().map(GroupManager::shutdown)).await;
    }
}

/// An acquire and a release for each of so many clients.
pub(crate) fn commands(clients: usize) -> Vec<(Bytes, Bytes)> {
    let command = |number: usize| {
        let (lock, owner) = (format!("lock-{number}"), format!("owner-{number}"));
        let (take, give) = (acquire(&lock, &owner, HOUR_MS), release(&lock, &owner));
        (codec::encode(&take).into(), codec::encode(&give).into())
    };
    (0..clients).map(command).collect()
}

fn replica_id(node: usize) -> u64 {
    node as u64 + 1
}

async fn start_node(
    node: usize,
    store: NodeStore,
    listener: TcpListener,
    addresses: &[String],
    secret: &ClusterSecret,
) -> (GroupManager, Group) {
    let Identity { cluster_id, node_id } = identity(node);
    let callers = Arc::<Callers>::default();
    let others = addresses.iter().enumerate().filter(|(other, _)| *other != node);
    let peers = others.map(|(other, address)| PeerConfig {
        node: identity(other).node_id,
        address: address.clone(),
        replicas: vec![replica_id(other)],
    });
    let signer = ServiceSigner::new(secret, "bench");
    let manager = GroupManager::start(GroupManagerOptions {
        node: node_id.clone(),
        cluster_id,
        restored_from: None,
        replicas: vec![replica_id(node)],
        rules: KnownRules { lowest: Rules::LOWEST.0, highest: Rules::HIGHEST.0 },
        allowed_rules: None,
        peers: peers.collect(),
        store,
        dialer: Arc::new(TcpDialer),
        identity: Arc::new(holdfast_rpc::Identity::new(node_id, replica_id(node), signer)),
        callers: Arc::clone(&callers),
        timing: Timing::default(),
    })
    .expect("the host starts");
    let acceptor = manager.accept_on(Acceptor::new(Arc::new(ServiceVerifier::new(secret)), callers));
    let accepting = stream::unfold(listener, |listener| async {
        let (stream, _) = listener.accept().await.expect("it listens");
        stream.set_nodelay(true).expect("it is TCP");
        Some((Incoming { stream: Box::new(stream), peer: (), has_cert: true, counted: None }, listener))
    });
    tokio::spawn(Arc::new(acceptor).serve(accepting, |_, ()| async {}));
    let options = GroupOptions {
        group: "g1".to_owned(),
        replica: replica_id(node),
        members: (0..addresses.len()).map(|node| (replica_id(node), identity(node).node_id)).collect(),
        snapshot_interval_entries: 10_000,
        retain_entries: 2_000,
        log_limits: LogLimits::default(),
        clocks: Clocks::default(),
    };
    let shard = Arc::new(ShardMachine::new(Application::Locks, SHARD, None, None));
    let machine = Arc::new(GroupMachine::new(vec![shard]));
    let group = manager.start_group(options, machine).await.expect("the replica starts");
    (manager, group)
}
