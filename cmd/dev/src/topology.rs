//! The topology of a cluster whose nodes all run on this machine.

use anyhow::{Context, Result, ensure};
use holdfast_cluster::ClusterConfig;

/// Default number of shards of `Namespaces` and of `Locks`.
pub(crate) const DEFAULT_SHARDS: u32 = 16;
/// Default number of replicas of a shard, if there are as many nodes.
const DEFAULT_REPLICATION_FACTOR: u32 = 3;
/// A limit far above what is useful on one machine.
pub(crate) const MAX_NODES: u16 = 100;

/// Creates a config with `nodes` nodes nd_1 and following, which listen on 127.0.0.1 from `base_port` on.
pub(crate) fn generate(
    nodes: u16,
    base_port: u16,
    shards: u32,
    replication_factor: Option<u32>,
) -> Result<ClusterConfig> {
    let last_port = u32::from(base_port) + u32::from(nodes.saturating_sub(1));
    ensure!(
        last_port <= u32::from(u16::MAX),
        "--base-port: {nodes} nodes from port {base_port} on need ports up to {last_port}, beyond {}",
        u16::MAX
    );
    let nodes_and_addresses =
        (0..nodes).map(|index| (format!("nd_{}", index + 1), format!("127.0.0.1:{}", base_port + index))).collect();
    let replication_factor = replication_factor.unwrap_or(DEFAULT_REPLICATION_FACTOR.min(nodes.into()));
    ClusterConfig::generate(nodes_and_addresses, shards, replication_factor).context("no cluster config can be made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_config_that_ships() {
        let config = generate(3, 7_000, DEFAULT_SHARDS, None).unwrap();
        assert_eq!(config.to_json(), include_str!("../../../cluster_config.json"));
    }

    #[test]
    fn fewer_nodes_than_three_get_a_replica_each() {
        let config = generate(1, 7_100, 4, None).unwrap();
        assert_eq!(config.nodes[0].address, "127.0.0.1:7100");
        assert!(config.applications.iter().all(|application| application.replication_factor == 1));
    }

    #[test]
    fn what_makes_no_cluster_is_refused_with_the_reason() {
        let refusal = |nodes, port, shards, factor| format!("{:#}", generate(nodes, port, shards, factor).unwrap_err());
        assert!(refusal(3, 65_534, 16, None).contains("up to 65536"), "{}", refusal(3, 65_534, 16, None));
        assert!(refusal(2, 7_000, 16, Some(3)).contains("replication_factor"), "{}", refusal(2, 7_000, 16, Some(3)));
        assert!(refusal(3, 7_000, 0, None).contains("shards"), "{}", refusal(3, 7_000, 0, None));
    }
}
