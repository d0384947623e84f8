//! A look at the nodes themselves, for the operator: what each says of its replicas.

use std::time::Duration;

use futures::future::join_all;
use holdfast_cluster::{Application, ClusterConfig, Node};
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use holdfast_proto::internal::{StatusAnswer, StatusRequest};
use tokio::time::{Instant, timeout_at};
use tonic::Request;

use crate::Router;

/// How long a node may take; a node that is down should not hold up what the others say.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
/// The largest answer that is read: some hundred bytes for each replica.
const MAX_ANSWER: usize = 16 << 20;

impl Router {
    /// The topology.
    pub fn cluster_config(&self) -> ClusterConfig {
        self.map().config().clone()
    }

    /// A key of each shard of an application, in order of their bounds.
    pub fn keys_of_shards(&self, application: Application) -> Vec<u32> {
        self.map().shards(application).map(|shard| shard.lower_bound).collect()
    }

    /// What every node says of itself, in the order of the config; or why it says nothing.
    pub async fn look_at_nodes(&self, deadline: Instant) -> Vec<(Node, Result<StatusAnswer, String>)> {
        let deadline = deadline.min(Instant::now() + LOOK_WITHIN);
        let looks = self.cluster_config().nodes.into_iter().map(|node| async move {
            let said = match timeout_at(deadline, self.look_at(&node.address)).await {
                Ok(said) => said,
                Err(_) => Err("it did not answer in time".to_owned()),
            };
            (node, said)
        });
        join_all(looks).await
    }

    /// On a connection of its own: it is asked rarely, and what it is asked about may be why the usual one is busy.
    async fn look_at(&self, address: &str) -> Result<StatusAnswer, String> {
        let caller = self.caller();
        let channel = caller.connector.connect(address).await.map_err(|error| error.to_string())?;
        let mut request = Request::new(StatusRequest { with_digests: false });
        caller.authorize(request.metadata_mut()).map_err(|error| error.to_string())?;
        let mut client = NodeServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        let said = client.status(request).await.map_err(|status| status.message().to_owned())?;
        Ok(said.into_inner())
    }
}
