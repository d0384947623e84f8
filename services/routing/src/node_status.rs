//! Status of the nodes, for the operator.

use std::time::Duration;

use futures::future::join_all;
use holdfast_cluster::{Application, ClusterConfig, Node};
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use holdfast_proto::internal::{StatusAnswer, StatusRequest};
use tokio::time::{Instant, timeout_at};

use crate::Router;

/// Timeout of a status call; a node that is down must not delay the others' responses.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest response accepted: some hundred bytes for each shard of each replica.
const MAX_STATUS_BYTES: usize = 16 << 20;

impl Router {
    /// Returns the topology.
    pub fn cluster_config(&self) -> ClusterConfig {
        self.map().config().clone()
    }

    /// Returns a key of each shard of an application, in order of their bounds.
    pub fn shard_keys(&self, application: Application) -> Vec<u32> {
        self.map().shards(application).map(|shard| shard.lower_bound).collect()
    }

    /// Returns the first key of each shard of an application, in order, with the ids of the nodes that have a replica.
    pub fn shard_locations(&self, application: Application) -> Vec<(u32, Vec<String>)> {
        let map = self.map();
        let located = map.shards(application).map(|shard| {
            let replicas = &map.group_of(shard).replicas;
            (shard.lower_bound, replicas.iter().map(|replica| replica.node_id.clone()).collect())
        });
        located.collect()
    }

    /// Returns the status of every node, or the reason for its absence, in the order of the config.
    pub async fn node_statuses(&self, deadline: Instant) -> Vec<(Node, Result<StatusAnswer, String>)> {
        let deadline = deadline.min(Instant::now() + STATUS_TIMEOUT);
        let looks = self.cluster_config().nodes.into_iter().map(|node| async move {
            if let Some(local) = self.local().filter(|local| local.node_id == node.id) {
                return (node, Ok(local.handler.status()));
            }
            let said = match timeout_at(deadline, self.node_status(&node.address)).await {
                Ok(said) => said,
                Err(_) => Err("it did not answer in time".to_owned()),
            };
            (node, said)
        });
        join_all(looks).await
    }

    /// Uses a separate connection: status calls are rare, and the usual connection may be part of the problem.
    async fn node_status(&self, address: &str) -> Result<StatusAnswer, String> {
        let channel = self.caller().connect(address).await.map_err(|error| error.to_string())?;
        let request = StatusRequest { with_digests: false };
        let request = self.caller().request(request).map_err(|error| error.to_string())?;
        let mut client = NodeServiceClient::new(channel).max_decoding_message_size(MAX_STATUS_BYTES);
        let said = client.status(request).await.map_err(|status| status.message().to_owned())?;
        Ok(said.into_inner())
    }
}
