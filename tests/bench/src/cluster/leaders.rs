//! Which node leads a shard.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use holdfast_proto::internal::StatusRequest;
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use tonic::Request;
use tonic::transport::Endpoint;

use super::{Cluster, NODES};

const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Cluster {
    /// Waits until every shard has a leader and all of its replicas have applied as much as it has. Returns the node
    /// that leads each, by shard id.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn wait_leaders(&self) -> Result<BTreeMap<String, usize>> {
        let deadline = Instant::now() + LEADER_TIMEOUT;
        loop {
            let reason = match self.leaders().await {
                Ok(leaders) => return Ok(leaders),
                Err(error) => error,
            };
            if Instant::now() > deadline {
                bail!("the cluster has not settled: {reason}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn leaders(&self) -> Result<BTreeMap<String, usize>> {
        let mut leaders = BTreeMap::new();
        let mut applied: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for node in 0..NODES {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.node_address(node)))?;
            let channel = endpoint.connect_timeout(STATUS_TIMEOUT).connect_lazy();
            let mut request = Request::new(StatusRequest { with_digests: false });
            request.set_timeout(STATUS_TIMEOUT);
            let token = self.signer.token()?;
            request.metadata_mut().insert("authorization", format!("Bearer {}", token.expose()).parse()?);
            let status = NodeServiceClient::new(channel).status(request).await?.into_inner();
            for replica in status.replicas {
                applied.entry(replica.shard.clone()).or_default().push(replica.applied_index);
                if replica.leader == replica.replica {
                    leaders.insert(replica.shard, node);
                }
            }
        }
        for (shard, indexes) in applied {
            if !leaders.contains_key(&shard) {
                bail!("{shard} has no leader");
            }
            if indexes.iter().any(|index| *index != indexes[0]) {
                bail!("{shard} is not at the same entry everywhere");
            }
        }
        Ok(leaders)
    }
}
