//! The groups that a node starts.

use std::sync::Arc;

use holdfast_auth::ClusterSecret;
use holdfast_cluster::ClusterConfig;
use holdfast_node::{Node, NodeError, NodeOptions};
use holdfast_routing::TcpDialer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_keeps_to_the_groups_of_its_first_start() {
    crate::mutations::enable_from_env();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let secret = ClusterSecret::generate().expect("there are random numbers");
    let open = |config: &ClusterConfig| {
        let mut options = NodeOptions::new("nd_1", config.clone(), secret.clone(), directory.path());
        options.disk_reserve = 0;
        Node::open(&options, Arc::new(TcpDialer)).map_err(Box::new)
    };
    let nodes = (1..=3).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6_999 + number)));
    let config = ClusterConfig::generate(nodes.collect(), 4, 3).expect("it is a config");
    open(&config).expect("it starts").stop().await;
    // Somebody sorts the shards in the file, and other ones give their groups the ids of replicas.
    let mut sorted = config;
    let [first, second, ..] = &mut sorted.groups[..] else { panic!("there are several groups") };
    std::mem::swap(&mut first.replicas, &mut second.replicas);
    let refusal = open(&sorted).err().expect("it does not start replicas beside those that it has");
    assert!(matches!(*refusal, NodeError::OtherGroups { .. }), "{refusal}");
}
