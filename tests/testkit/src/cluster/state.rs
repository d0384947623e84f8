//! The state of a cluster, as its nodes report it.

use futures::future::{join_all, try_join_all};
use holdfast_proto::internal::StatusAnswer;

use super::Cluster;
use crate::eventually::eventually;
use crate::metrics::Metrics;

impl Cluster {
    /// Returns the shards that a node leads, according to itself.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn shards_led_by(&self, node: usize) -> Vec<String> {
        let status = self.status(node, false).await.unwrap_or_else(|error| panic!("{error}"));
        let led = status.replicas.into_iter().filter(|replica| replica.leader == replica.replica);
        led.map(|replica| replica.shard).collect()
    }

    /// Returns the status of every shard of every replica of a node.
    ///
    /// # Errors
    /// If the node does not answer.
    pub async fn status(&self, node: usize, with_digests: bool) -> Result<StatusAnswer, String> {
        let status = self.node_client(node).status(with_digests).await;
        status.map_err(|error| format!("{}: {error}", self.nodes[node].name()))
    }

    /// Waits until a shard's group has a leader. Returns its node, replica and term, according to itself.
    pub async fn wait_leader(&self, shard: &str) -> (usize, u64, u64) {
        eventually(&format!("{shard} has a leader"), async || {
            for node in 0..self.nodes.len() {
                let Ok(status) = self.status(node, false).await else { continue };
                let found = status.replicas.iter().find(|replica| replica.shard == shard);
                if let Some(replica) = found.filter(|replica| replica.leader == replica.replica) {
                    return Ok((node, replica.replica, replica.term));
                }
            }
            Err("no replica says that it leads".to_owned())
        })
        .await
    }

    /// Describes a shard on each replica of its group, for people.
    pub async fn describe(&self, shard: &str) -> String {
        let statuses = join_all((0..self.nodes.len()).map(|node| self.status(node, false))).await;
        let lines = statuses.into_iter().map(|status| match status {
            Ok(status) => {
                // A node that has just started has none yet.
                let replica = status.replicas.iter().find(|replica| replica.shard == shard);
                format!("{}: {replica:?}", status.node_id)
            }
            Err(error) => error,
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until all nodes have applied the same entries of every shard, and checks that their states are the same,
    /// byte for byte. Returns how many shards were compared.
    ///
    /// # Panics
    /// If states differ.
    pub async fn wait_equal_states(&self) -> usize {
        eventually("all replicas have the same state", async || {
            let statuses = join_all((0..self.nodes.len()).map(|node| self.status(node, true))).await;
            let statuses: Vec<StatusAnswer> = statuses.into_iter().collect::<Result<_, _>>()?;
            compare_states(&statuses)
        })
        .await
    }

    /// Returns the sums of metrics over all nodes.
    ///
    /// # Errors
    /// If a node does not answer.
    pub async fn metric_sums(&self, names: &[&str]) -> Result<Vec<f64>, String> {
        let nodes: Vec<Metrics> = try_join_all(self.nodes.iter().map(crate::program::Program::metrics)).await?;
        Ok(names.iter().map(|name| nodes.iter().map(|metrics| metrics.sum(name)).sum()).collect())
    }
}

/// Replicas at the same index must have the same digest; different indexes are no fault.
fn compare_states(statuses: &[StatusAnswer]) -> Result<usize, String> {
    let mut late = None;
    for replica in &statuses[0].replicas {
        for other in &statuses[1..] {
            let other = other.replicas.iter().find(|other| other.shard == replica.shard);
            let Some(other) = other else { return Err(format!("{} is not everywhere", replica.shard)) };
            if replica.applied_index != other.applied_index || replica.state_digest.is_empty() {
                late = Some(format!("{}: {} and {}", replica.shard, replica.applied_index, other.applied_index));
            } else if !other.state_digest.is_empty() {
                let index = replica.applied_index;
                assert_eq!(replica.state_digest, other.state_digest, "{} differs at {index}", replica.shard);
            }
        }
    }
    late.map_or(Ok(statuses[0].replicas.len()), Err)
}
