//! A command that ends the process, in processes of their own.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, abort};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_auth::ClusterSecret;
use holdfast_cluster::ClusterConfig;
use holdfast_core::shard::ShardState;
use holdfast_node::{ApplyObserver, Node, NodeOptions};
use holdfast_proto::internal::ReplicaStatus;
use holdfast_proto::internal::call::Body;
use holdfast_replication::EntryHeader;
use holdfast_routing::TcpDialer;
use tempfile::tempdir;
use tokio::time::{Duration, sleep, timeout};

use crate::broken_shards::{MAX_WAIT, SHARD, call, open_namespace, open_session};

/// The data directory of the node of another process.
const DIR_VARIABLE: &str = "HOLDFAST_TEST_DATA_DIR";
/// What that process runs.
const NODE: &str = "ended_processes::a_node_that_is_sent_such_a_command_or_has_it";
/// The session that no process opens and lives.
const FATAL: &str = "se_fatal";
/// The secret of the cluster: that of all its processes.
const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Ends the process before a section with that session is done, as an exhausted stack would.
struct EndingObserver;

impl ApplyObserver for EndingObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, _: &str, _: EntryHeader, commands: &[Bytes], _: &[Bytes], _: &ShardState) {
        let is_fatal = |command: &Bytes| command.windows(FATAL.len()).any(|part| part == FATAL.as_bytes());
        if commands.iter().any(is_fatal) {
            abort();
        }
    }

    fn restored(&self, _: &str, _: &ShardState) {}
}

async fn start(data_dir: &Path) -> Node {
    let secret = ClusterSecret::from_hex(SECRET).expect("it is a secret");
    let nodes = vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())];
    let config = ClusterConfig::generate(nodes, 1, 1).expect("it is a config");
    let options = NodeOptions::new("nd_1", config, secret, data_dir);
    let node =
        Node::open(&options, Arc::new(TcpDialer)).expect("the node starts").with_observer(Arc::new(EndingObserver));
    node.start_replicas(&options).await.expect("the replicas start");
    wait_ready(&node).await;
    node
}

async fn wait_ready(node: &Node) {
    let not_ready = node.not_ready();
    let starting = async {
        while not_ready().is_some() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(MAX_WAIT, starting).await.unwrap_or_else(|_| panic!("not ready: {:?}", not_ready()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in processes of its own"]
async fn a_node_that_is_sent_such_a_command_or_has_it() {
    let data_dir = env::var_os(DIR_VARIABLE).expect("another test runs this");
    let node = start(Path::new(&data_dir)).await;
    if node.down_shards()().is_empty() {
        call(&node, Body::Command(open_namespace())).await.expect("it is open");
        let answer = call(&node, Body::Command(open_session(FATAL))).await;
        panic!("the process goes on: {answer:?}");
    }
    assert_eq!(node.down_shards()(), [SHARD], "all others serve");
    let status = node.status(false).replicas.into_iter().find(|replica: &ReplicaStatus| replica.shard == SHARD);
    let poison = status.and_then(|status| status.poison).expect("it is said what it failed at");
    assert_eq!(
        (poison.step.as_str(), poison.namespace.as_str()),
        ("command 0", "0000000000000007/orders/0000000000000001")
    );
    assert!(poison.command.contains(FATAL) && poison.message.contains("the process ended"), "{poison:?}");
    node.stop().await;
}

fn run_node(data_dir: &Path) -> ExitStatus {
    let program = env::current_exe().expect("it runs");
    let mut command = Command::new(program);
    command.args(["--exact", NODE, "--ignored", "--nocapture"]).env(DIR_VARIABLE, data_dir);
    command.status().expect("it starts")
}

#[test]
fn a_command_that_ends_the_process_costs_its_shard_and_four_processes() {
    let dir = tempdir().expect("there is a disk");
    for process in ["that is sent it", "after it", "that looks for it", "that is sure"] {
        let ended = run_node(dir.path());
        assert!(ended.signal().is_some(), "the process {process} does not end at it: {ended}");
    }
    for process in ["that has found it", "after that"] {
        let ended = run_node(dir.path());
        assert!(ended.success(), "the process {process} fails: {ended}");
    }
}
