//! Which node leads a shard.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use holdfast_testkit::Cluster;

use super::NODES;

const LEADER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until every shard has a leader and all of its replicas have applied as much as it has. Returns the node that
/// leads each, by shard id.
///
/// # Errors
/// If that takes too long.
pub async fn wait_leaders(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let deadline = Instant::now() + LEADER_TIMEOUT;
    loop {
        let reason = match leaders(cluster).await {
            Ok(leaders) => return Ok(leaders),
            Err(error) => error,
        };
        if Instant::now() > deadline {
            bail!("the cluster has not settled: {reason}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn leaders(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let mut leaders = BTreeMap::new();
    let mut applied: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for node in 0..NODES {
        for replica in cluster.status(node, false).await.map_err(|error| anyhow!(error))?.replicas {
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
