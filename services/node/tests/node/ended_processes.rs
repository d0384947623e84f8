//! A command that ends the process, in processes of their own.

use std::env;
use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, abort};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_cluster::ClusterConfig;
use holdfast_core::shard::ShardState;
use holdfast_node::{AdminEndpoints, ApplyObserver, Node, NodeOptions, serve};
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Poison, ReplicaStatus};
use holdfast_replication::EntryHeader;
use holdfast_routing::{AdminClient, Quarantined, TcpDialer};
use tempfile::tempdir;
use tokio::net::TcpListener;
use tokio::time::{Duration, sleep, timeout};

use crate::broken_shards::{MAX_WAIT, SHARD, call, open_namespace, open_session, wait_led};

/// The data directory of the node of another process.
const DIR_VARIABLE: &str = "HOLDFAST_TEST_DATA_DIR";
/// What that process is to do.
const TASK_VARIABLE: &str = "HOLDFAST_TEST_TASK";
/// What that process runs.
const NODE: &str = "ended_processes::a_node_in_a_process_of_its_own";
/// The session that no process opens and lives.
const FATAL: &str = "se_fatal";
/// The secret of the cluster: that of all its processes.
const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Ends the process before a section that opens that session is done, as an exhausted stack would.
struct EndingObserver;

impl ApplyObserver for EndingObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, _: &str, _: EntryHeader, _: &[Bytes], _: &[Bytes], core: &ShardState) {
        if core.sessions().any(|session| session.session_id == FATAL) {
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
async fn a_node_in_a_process_of_its_own() {
    let data_dir = env::var_os(DIR_VARIABLE).expect("another test runs this");
    let node = start(Path::new(&data_dir)).await;
    match env::var(TASK_VARIABLE).expect("it has a task").as_str() {
        "send" => {
            call(&node, Body::Command(open_namespace())).await.expect("it is open");
            let answer = call(&node, Body::Command(open_session(FATAL))).await;
            panic!("the process goes on: {answer:?}");
        }
        "look" => {
            check_failed(&node);
            node.stop().await;
        }
        "leave out" => {
            let poison = check_failed(&node);
            leave_out(&node, &poison).await;
            // The shard serves, and the node has the time to record it.
            for number in 0..20 {
                call(&node, Body::Command(open_session(&format!("se_{number}")))).await.expect("the shard serves");
            }
            abort();
        }
        "serve" => {
            call(&node, Body::Command(open_session("se_sound"))).await.expect("the shard serves");
            node.stop().await;
        }
        task => panic!("no task: {task}"),
    }
}

/// Checks that only the shard does not serve, and returns what it failed at.
fn check_failed(node: &Node) -> Poison {
    assert_eq!(node.down_shards()(), [SHARD], "all others serve");
    let status = node.status(false).replicas.into_iter().find(|replica: &ReplicaStatus| replica.shard == SHARD);
    let poison = status.and_then(|status| status.poison).expect("it is said what it failed at");
    assert_eq!(
        (poison.step.as_str(), poison.namespace.as_str()),
        ("command 0", "0000000000000007/orders/0000000000000001")
    );
    assert!(poison.command.contains(FATAL) && poison.message.contains("the process ended"), "{poison:?}");
    poison
}

/// Leaves the command out, as an operator does, and waits until the shard serves.
async fn leave_out(node: &Node, poison: &Poison) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
    let address = listener.local_addr().expect("it has an address").to_string();
    let endpoints = AdminEndpoints { metrics: Arc::new(String::new), is_operator: Arc::new(|_| false) };
    let secret = ClusterSecret::from_hex(SECRET).expect("it is a secret");
    let operations = AdminClient::new(ServiceSigner::new(&secret, "operator"), Arc::new(TcpDialer));
    let (replica, _) = wait_led(node).await;
    let called = holdfast_cluster::Node { id: "nd_1".to_owned(), address, gateway_address: None, zone: None };
    let leaving_out = async {
        let what = Quarantined::Command(0);
        operations.quarantine(&called, replica, SHARD, poison.index, what, false).await.expect("it is left out");
        wait_ready(node).await;
    };
    tokio::select! {
        ended = serve(listener, None, node, endpoints, pending()) => panic!("the port is closed: {ended:?}"),
        done = timeout(MAX_WAIT, leaving_out) => done.expect("the shard serves"),
    }
}

fn run_node(data_dir: &Path, task: &str) -> ExitStatus {
    let program = env::current_exe().expect("it runs");
    let mut command = Command::new(program);
    command.args(["--exact", NODE, "--ignored", "--nocapture"]).env(DIR_VARIABLE, data_dir).env(TASK_VARIABLE, task);
    command.status().expect("it starts")
}

#[test]
fn a_command_that_ends_the_process_costs_its_shard_and_four_processes_until_it_is_left_out() {
    let dir = tempdir().expect("there is a disk");
    for (process, task) in
        [("that is sent it", "send"), ("after it", "look"), ("that looks for it", "look"), ("that is sure", "look")]
    {
        let ended = run_node(dir.path(), task);
        assert!(ended.signal().is_some(), "the process {process} does not end at it: {ended}");
    }
    for (process, task) in [("that has found it", "look"), ("after that", "look")] {
        let ended = run_node(dir.path(), task);
        assert!(ended.success(), "the process {process} fails: {ended}");
    }
    assert!(run_node(dir.path(), "leave out").signal().is_some(), "the operator's process is killed");
    for process in ["after the operator", "at last"] {
        let ended = run_node(dir.path(), "serve");
        assert!(ended.success(), "the process {process} fails: {ended}");
    }
}
