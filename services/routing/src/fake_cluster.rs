//! A router to three scripted nodes.

use std::sync::Arc;
use std::time::Duration;

use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_cluster::{Application, ClusterConfig, ShardMap};
use holdfast_testkit::fake_node::{FakeNode, config_of};

use crate::call::Destination;
use crate::call_load::CountedCall;
use crate::channel::NodeChannel;
use crate::{Router, RoutingOptions, TcpDialer};

/// Three nodes, one shard for each application, each in a group of its own; the replicas of the accounts shard's group
/// are 1, 2, 3 on nodes 0, 1, 2.
pub(crate) struct FakeCluster {
    pub(crate) nodes: Vec<FakeNode>,
    pub(crate) router: Router,
}

impl FakeCluster {
    pub(crate) async fn start(options: RoutingOptions) -> Self {
        Self::with_config(options, config_of).await
    }

    /// Starts with one group that has all shards.
    pub(crate) async fn start_with_one_group(options: RoutingOptions) -> Self {
        Self::with_config(options, |nodes| in_one_group(config_of(nodes))).await
    }

    /// Starts with a config of these nodes.
    pub(crate) async fn with_config(
        options: RoutingOptions,
        config: impl FnOnce(&[FakeNode]) -> ClusterConfig,
    ) -> Self {
        let secret = ClusterSecret::generate().expect("a test peer on loopback with a config of its own making");
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(FakeNode::start(&secret).await);
        }
        let router = router_of(config(&nodes), &secret, options);
        Self { nodes, router }
    }

    /// Counts calls to the node of a replica until there is room for no other one to that destination. Dropping them
    /// makes room again.
    pub(super) fn fill(to: &Destination, replica: u64) -> Vec<CountedCall> {
        let place = to.route.endpoint(replica).expect("a replica of the group");
        let NodeChannel::Remote { load, .. } = &*place.channel else { panic!("the nodes are other processes") };
        let counted = std::iter::from_fn(|| load.add(to.load, 0).ok().flatten()).collect::<Vec<_>>();
        assert!(!counted.is_empty(), "there was no room");
        counted
    }
}

/// Moves all shards to the first group.
fn in_one_group(mut config: ClusterConfig) -> ClusterConfig {
    config.groups.truncate(1);
    let group = config.groups[0].id.clone();
    for shard in config.applications.iter_mut().flat_map(|application| &mut application.shards) {
        shard.group.clone_from(&group);
    }
    config
}

pub(crate) fn router_to(nodes: &[FakeNode], secret: &ClusterSecret, options: RoutingOptions) -> Router {
    router_of(config_of(nodes), secret, options)
}

fn router_of(config: ClusterConfig, secret: &ClusterSecret, options: RoutingOptions) -> Router {
    let map = ShardMap::new(config).expect("a test peer on loopback with a config of its own making");
    let replicas = &map.group_of(map.shard_for(Application::Accounts, 0)).replicas;
    for (index, replica) in replicas.iter().enumerate() {
        assert_eq!((replica.id, replica.node_id.clone()), (index as u64 + 1, format!("nd_{}", index + 1)));
    }
    let signer = ServiceSigner::new(secret, "gateway test");
    Router::start(map, signer, "caller".to_owned(), Arc::new(TcpDialer), options, None)
}

/// Returns options with times short enough for tests, in the proportions of the defaults.
pub(crate) fn fast_options() -> RoutingOptions {
    RoutingOptions {
        router: "test",
        max_without_leader: Duration::from_millis(600),
        suspect_after: Duration::from_millis(80),
        probe_timeout: Duration::from_millis(50),
        min_backoff: Duration::from_millis(2),
        max_backoff: Duration::from_millis(10),
        connect_timeout: Duration::from_millis(500),
        max_reconnect_backoff: Duration::from_millis(50),
    }
}
