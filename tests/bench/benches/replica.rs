//! A whole replica without a network: commands through the queue, the log, and the state machine of a group that has
//! this one member, over memory (what the code costs) and over RocksDB (what it costs with the disk).

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::future::join_all;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_core::Application;
use holdfast_core::{Rules, codec};
use holdfast_node::{GroupMachine, ShardMachine};
use holdfast_replication::{
    Clocks, Group, GroupManager, GroupManagerOptions, GroupOptions, KnownRules, LogLimits, Timing,
};
use holdfast_rpc::TcpDialer;
use holdfast_storage::{Identity, MemoryDisk, NodeStore};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use common::{HOUR_MS, SHARD, acquire, open, release};

const REPLICA: u64 = 1;
/// Of the only shard of the group.
const SHARD_NUMBER: u32 = 0;
const DEADLINE: Duration = Duration::from_secs(10);

fn identity() -> Identity {
    Identity { cluster_id: "bench".to_owned(), node_id: "nd_1".to_owned() }
}

/// Starts the group and waits until it leads. Returns the term.
async fn start(store: NodeStore) -> (GroupManager, Group, u64) {
    let identity = identity();
    let secret = ClusterSecret::generate().expect("there are random numbers");
    let host = GroupManager::start(GroupManagerOptions {
        node: identity.node_id.clone(),
        cluster_id: identity.cluster_id,
        restored_from: None,
        replicas: vec![REPLICA],
        rules: KnownRules { lowest: Rules::LOWEST.0, highest: Rules::HIGHEST.0 },
        allowed_rules: None,
        peers: Vec::new(),
        store,
        // There is no peer.
        dialer: Arc::new(TcpDialer),
        identity: Arc::new(holdfast_rpc::Identity::new(
            identity.node_id.clone(),
            1,
            ServiceSigner::new(&secret, "bench"),
        )),
        callers: Arc::default(),
        timing: Timing::default(),
    })
    .expect("the host starts");
    let options = GroupOptions {
        group: "g1".to_owned(),
        replica: REPLICA,
        members: BTreeMap::from([(REPLICA, identity.node_id)]),
        snapshot_interval_entries: 10_000,
        retain_entries: 2_000,
        log_limits: LogLimits::default(),
        clocks: Clocks::default(),
    };
    let shard = Arc::new(ShardMachine::new(Application::Locks, SHARD, None, None));
    let machine = Arc::new(GroupMachine::new(vec![shard]));
    let group = host.start_group(options, machine).await.expect("the replica starts");
    group.bootstrap().await.expect("the group forms");
    let mut leadership = group.subscribe_leadership();
    let leads = *leadership.wait_for(Option::is_some).await.expect("the replica runs");
    let term = leads.expect("it was waited for").term;
    let opened =
        group.propose(SHARD_NUMBER, term, Bytes::from(codec::encode(&open())), Instant::now() + DEADLINE).await;
    opened.expect("the namespace opens");
    (host, group, term)
}

/// One pair by each of so many clients at a time.
async fn pairs(group: &Group, term: u64, commands: &[(Bytes, Bytes)]) {
    let pair = async |(take, give): &(Bytes, Bytes)| {
        for command in [take, give] {
            let reply = group.propose(SHARD_NUMBER, term, command.clone(), Instant::now() + DEADLINE).await;
            reply.expect("the command is applied");
        }
    };
    join_all(commands.iter().map(pair)).await;
}

fn replica(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime starts");
    let dir = tempfile::tempdir().expect("a temporary directory");
    for disk in ["memory", "RocksDB"] {
        let (_host, replica, term) = runtime.block_on(async {
            let store = match disk {
                "memory" => NodeStore::in_memory(&MemoryDisk::new(), &identity()),
                _ => NodeStore::open(&dir.path().join("data"), &identity()),
            };
            start(store.expect("the store opens")).await
        });
        let mut group = criterion.benchmark_group(format!("replica over {disk}/acquire + release"));
        for clients in [1, 16, 256] {
            let command = |number: usize| {
                let (lock, owner) = (format!("lock-{number}"), format!("owner-{number}"));
                let (take, give) = (acquire(&lock, &owner, HOUR_MS), release(&lock, &owner));
                (Bytes::from(codec::encode(&take)), Bytes::from(codec::encode(&give)))
            };
            let commands: Vec<(Bytes, Bytes)> = (0..clients).map(command).collect();
            group.throughput(Throughput::Elements(clients as u64));
            group.bench_function(BenchmarkId::from_parameter(format!("{clients} clients")), |bencher| {
                bencher.to_async(&runtime).iter(|| pairs(&replica, term, &commands));
            });
        }
        group.finish();
        runtime.block_on(replica.shutdown());
    }
}

criterion_group!(benches, replica);
criterion_main!(benches);
