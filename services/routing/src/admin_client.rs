//! The operator's calls to individual nodes: cluster config, leadership transfer, backup. They need the cluster secret,
//! and no gateway.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_auth::ServiceSigner;
use holdfast_cluster::{ClusterConfig, Node};
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use holdfast_proto::internal::operations_service_client::OperationsServiceClient;
use holdfast_proto::internal::quarantine_request::What;
use holdfast_proto::internal::{
    BackUpPart, BackUpRequest, GetConfigRequest, HandOverRequest, QuarantineRequest, RebuildShardRequest,
    SetConfigRequest, StatusAnswer, StatusRequest,
};
use holdfast_rpc::Identity;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::Dialer;
use crate::http::HttpCaller;

/// Largest cluster config, in bytes of JSON: thousands of shards.
pub(super) const MAX_CONFIG_BYTES: usize = 16 << 20;
/// Largest chunk of a state, in bytes, with some overhead.
const MAX_PART_BYTES: usize = 4 << 20;
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A rebuild logs an entry and asks all replicas for their states.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the call for a backup: before it answers, the node makes a snapshot of the whole group, of any size.
const BACK_UP_TIMEOUT: Duration = Duration::from_secs(310);
/// A leadership transfer waits for in-flight work.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an admin call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node}: {reason}")]
pub struct AdminError {
    /// The node.
    pub node: String,
    /// The human-readable reason.
    pub reason: String,
    /// The node was not reached, so its state is unknown.
    pub is_unreachable: bool,
}

/// What every replica leaves out of the history of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quarantined {
    /// A namespace, from an entry on.
    Namespace(String),
    /// A command of the entry, by its position in the section of the shard.
    Command(u32),
}

/// How the replicas where a shard serves compare with the one that others are rebuilt from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComparedReplicas {
    /// Those that have another state, and keep it.
    pub differing: Vec<u64>,
    /// Those whose state is not known, since they did not answer. If it is the one that others are rebuilt from, none
    /// is known to differ.
    pub unknown: Vec<u64>,
}

type Client = OperationsServiceClient<Channel>;

/// Calls nodes on behalf of the operator. Cheap to clone.
#[derive(Clone)]
pub struct AdminClient {
    caller: Arc<HttpCaller>,
}

impl AdminClient {
    /// Creates a client; `signer` proves that it belongs to the cluster.
    pub fn new(signer: ServiceSigner, dialer: Arc<dyn Dialer>) -> Self {
        let identity = Arc::new(Identity::new("operator", 0, signer));
        Self { caller: Arc::new(HttpCaller { dialer, identity }) }
    }

    /// Returns the node's current config.
    ///
    /// # Errors
    /// When the node is not reached, or its response is invalid.
    pub async fn config(&self, node: &Node) -> Result<ClusterConfig, AdminError> {
        let request = GetConfigRequest {};
        let answer = self
            .call(node, request, CALL_TIMEOUT, async |mut client, request| client.get_config(request).await)
            .await?;
        ClusterConfig::from_json(&answer.config).map_err(|error| failure(node, error.to_string()))
    }

    /// Sends the next config to the node.
    ///
    /// # Errors
    /// When the node is not reached, or rejects the config.
    pub async fn set_config(&self, node: &Node, next: &ClusterConfig) -> Result<(), AdminError> {
        let request = SetConfigRequest { config: next.to_json() };
        self.call(node, request, CALL_TIMEOUT, async |mut client, request| client.set_config(request).await).await?;
        Ok(())
    }

    /// Transfers the leadership of a replica of the node to the given replica, or else to the one with the longest log.
    /// If it `stays`, it does not return to the preferred leader before that one is restarted.
    ///
    /// # Errors
    /// When the node is not reached, or the leadership does not move.
    pub async fn transfer_leadership(
        &self,
        node: &Node,
        replica: u64,
        to: Option<u64>,
        stays: bool,
    ) -> Result<(), AdminError> {
        let request = HandOverRequest { replica, to: to.unwrap_or(0), stays };
        self.call(node, request, TRANSFER_TIMEOUT, async |mut client, request| client.hand_over(request).await).await?;
        Ok(())
    }

    /// Returns the state of a shard of the group that the replica leads.
    ///
    /// # Errors
    /// When the node is not reached, or the replica does not lead.
    pub async fn back_up(&self, node: &Node, replica: u64, shard: &str) -> Result<Streaming<BackUpPart>, AdminError> {
        let request = BackUpRequest { replica, shard: shard.to_owned() };
        self.call(node, request, BACK_UP_TIMEOUT, async |mut client, request| client.back_up(request).await).await
    }

    /// Has the replicas where a shard has failed take its state from the replica `from`, whatever others have. `node` is
    /// that of the replica that leads the group of the shard. Returns how the replicas where the shard serves compare
    /// with that one.
    ///
    /// # Errors
    /// When the node is not reached, the replica does not lead, or the shard has failed on that replica too.
    pub async fn rebuild_shard(
        &self,
        node: &Node,
        replica: u64,
        shard: &str,
        from: u64,
    ) -> Result<ComparedReplicas, AdminError> {
        let request = RebuildShardRequest { replica, shard: shard.to_owned(), from };
        let rebuilt = self
            .call(node, request, REBUILD_TIMEOUT, async |mut client, request| client.rebuild_shard(request).await)
            .await?;
        Ok(ComparedReplicas { differing: rebuilt.differing, unknown: rebuilt.unknown })
    }

    /// Has every replica leave something out of the history of a shard from the entry of this index on, at which the
    /// shard has failed there: a namespace, as the record of the failure names it, or a command of the entry, by its
    /// position. `node` is that of the replica that leads the group of the shard. With `force`, also while the shard
    /// serves on other replicas.
    ///
    /// # Errors
    /// When the node is not reached, the replica does not lead, or the shard has failed at something else there, or
    /// serves on others.
    pub async fn quarantine(
        &self,
        node: &Node,
        replica: u64,
        shard: &str,
        index: u64,
        what: Quarantined,
        force: bool,
    ) -> Result<(), AdminError> {
        let what = match what {
            Quarantined::Namespace(namespace) => What::Namespace(namespace),
            Quarantined::Command(position) => What::Command(position),
        };
        let request = QuarantineRequest { replica, shard: shard.to_owned(), index, what: Some(what), force };
        self.call(node, request, CALL_TIMEOUT, async |mut client, request| client.quarantine(request).await).await?;
        Ok(())
    }

    /// Returns the status of every node of the config, in its order.
    pub async fn statuses(&self, config: &ClusterConfig) -> Vec<(Node, Result<StatusAnswer, AdminError>)> {
        let looks = config.nodes.iter().map(|node| async move { (node.clone(), self.status(node).await) });
        join_all(looks).await
    }

    async fn status(&self, node: &Node) -> Result<StatusAnswer, AdminError> {
        let asking = async {
            let channel = self.connect(node).await?;
            let request = self.authorized(node, StatusRequest { with_digests: false })?;
            let mut client = NodeServiceClient::new(channel).max_decoding_message_size(MAX_CONFIG_BYTES);
            client
                .status(request)
                .await
                .map(tonic::Response::into_inner)
                .map_err(|status| status_failure(node, &status))
        };
        timeout(CALL_TIMEOUT, asking).await.unwrap_or_else(|_| Err(timed_out(node)))
    }

    async fn call<Q, A>(
        &self,
        node: &Node,
        question: Q,
        within: Duration,
        call: impl AsyncFnOnce(Client, Request<Q>) -> Result<tonic::Response<A>, Status>,
    ) -> Result<A, AdminError> {
        let asking = async {
            let channel = self.connect(node).await?;
            let client = OperationsServiceClient::new(channel)
                .max_decoding_message_size(MAX_CONFIG_BYTES.max(MAX_PART_BYTES))
                .max_encoding_message_size(MAX_CONFIG_BYTES);
            let request = self.authorized(node, question)?;
            call(client, request).await.map(tonic::Response::into_inner).map_err(|status| status_failure(node, &status))
        };
        timeout(within, asking).await.unwrap_or_else(|_| Err(timed_out(node)))
    }

    async fn connect(&self, node: &Node) -> Result<Channel, AdminError> {
        let connected = self.caller.connect(&node.address).await;
        connected.map_err(|error| AdminError { is_unreachable: true, ..failure(node, error.to_string()) })
    }

    fn authorized<Q>(&self, node: &Node, question: Q) -> Result<Request<Q>, AdminError> {
        self.caller.request(question).map_err(|error| failure(node, error.to_string()))
    }
}

fn failure(node: &Node, reason: String) -> AdminError {
    AdminError { node: node.id.clone(), reason, is_unreachable: false }
}

fn status_failure(node: &Node, status: &Status) -> AdminError {
    let is_unreachable = status.code() == tonic::Code::Unavailable;
    AdminError { is_unreachable, ..failure(node, status.message().to_owned()) }
}

fn timed_out(node: &Node) -> AdminError {
    AdminError { is_unreachable: true, ..failure(node, "it did not answer in time".to_owned()) }
}
