//! The topology of a cluster whose nodes all run on this machine.

use anyhow::{Context, Result, ensure};
use holdfast_cluster::ClusterConfig;

/// Default number of shards of `Namespaces` and of `Locks`.
pub(crate) const DEFAULT_SHARDS: u32 = 16;
/// Default number of replicas of a group, if there are as many nodes.
const DEFAULT_REPLICATION_FACTOR: u32 = 3;
/// A limit far above what is useful on one machine.
pub(crate) const MAX_NODES: u16 = 100;

/// Creates a config with `nodes` nodes nd_1 and following, which listen on 127.0.0.1 from `base_port` on. The replicas
/// of its shards determine its groups.
pub(crate) fn generate(
    nodes: u16,
    base_port: u16,
    shards: u32,
    replication_factor: Option<u32>,
) -> Result<ClusterConfig> {
    let replication_factor = replication_factor_of(replication_factor, nodes);
    ClusterConfig::generate(nodes_and_addresses(nodes, base_port)?, shards, replication_factor)
        .context("no cluster config can be made")
}

/// The same with `groups` groups.
pub(crate) fn generate_with_groups(
    nodes: u16,
    base_port: u16,
    shards: u32,
    replication_factor: Option<u32>,
    groups: u32,
) -> Result<ClusterConfig> {
    let replication_factor = replication_factor_of(replication_factor, nodes);
    ClusterConfig::generate_with_groups(nodes_and_addresses(nodes, base_port)?, shards, replication_factor, groups)
        .context("no cluster config can be made")
}

fn nodes_and_addresses(nodes: u16, base_port: u16) -> Result<Vec<(String, String)>> {
    let last_port = u32::from(base_port) + u32::from(nodes.saturating_sub(1));
    ensure!(
        last_port <= u32::from(u16::MAX),
        "--base-port: {nodes} nodes from port {base_port} on need ports up to {last_port}, beyond {}",
        u16::MAX
    );
    Ok((0..nodes).map(|index| (format!("nd_{}", index + 1), format!("127.0.0.1:{}", base_port + index))).collect())
}

fn replication_factor_of(wanted: Option<u32>, nodes: u16) -> u32 {
    wanted.unwrap_or(DEFAULT_REPLICATION_FACTOR.min(nodes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_config_that_ships() {
        let config = generate(3, 7_000, DEFAULT_SHARDS, None).unwrap();
        assert_eq!(config.to_seed_json().unwrap(), include_str!("../../../cluster_config.json"));
    }

    #[test]
    fn a_given_number_of_groups_replaces_those_of_the_seed() {
        let config = generate_with_groups(3, 7_000, DEFAULT_SHARDS, None, 6).unwrap();
        assert_eq!(config.groups.len(), 6);
        assert!(config.groups.iter().all(|group| group.replicas.len() == 3));
        let error = generate_with_groups(3, 7_000, DEFAULT_SHARDS, None, 0).unwrap_err();
        assert!(format!("{error:#}").contains("groups: there are 0"), "{error:#}");
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
