//! `dev seed-cluster-config`: prints an initial config.

use anyhow::{Context, Result};
use clap::Args;
use holdfast_operator::output;

use crate::topology;

/// Flags of `dev seed-cluster-config`.
#[derive(Debug, Args)]
pub(crate) struct SeedClusterConfigArgs {
    /// The number of nodes of the cluster.
    #[arg(long, env = "HOLDFAST_NODES", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(topology::MAX_NODES)))]
    nodes: u16,
    /// The number of shards of Namespaces and of Locks; Accounts always has one.
    #[arg(long, env = "HOLDFAST_SHARDS", default_value_t = topology::DEFAULT_SHARDS)]
    shards: u32,
    /// The number of replicas of each group [default: 3, or all nodes when there are fewer].
    #[arg(long, env = "HOLDFAST_REPLICATION_FACTOR")]
    replication_factor: Option<u32>,
    /// The number of groups; the config then lists them [default: as many as nodes, which a reader derives from the
    /// replicas of the shards].
    #[arg(long, env = "HOLDFAST_GROUPS")]
    groups: Option<u32>,
    /// The port of nd_1 on 127.0.0.1; the others take the ports after it.
    #[arg(long, env = "HOLDFAST_BASE_PORT", default_value_t = 7_000, value_parser = clap::value_parser!(u16).range(1..))]
    base_port: u16,
}

/// Prints the config: with its groups if their number is given, otherwise with the replicas of each shard.
pub(crate) fn run(args: &SeedClusterConfigArgs) -> Result<()> {
    let SeedClusterConfigArgs { nodes, shards, replication_factor, groups, base_port } = *args;
    let text = match groups {
        Some(groups) => topology::generate_with_groups(nodes, base_port, shards, replication_factor, groups)?.to_json(),
        None => {
            let config = topology::generate(nodes, base_port, shards, replication_factor)?;
            config.to_seed_json().context("the config has no seed form; give the number of --groups")?
        }
    };
    output::print(text.trim_end())
}
