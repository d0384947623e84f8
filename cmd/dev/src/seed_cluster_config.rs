//! `dev seed-cluster-config`: prints an initial config.

use anyhow::Result;
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
    /// The number of replicas of each shard [default: 3, or all nodes when there are fewer].
    #[arg(long, env = "HOLDFAST_REPLICATION_FACTOR")]
    replication_factor: Option<u32>,
    /// The port of nd_1 on 127.0.0.1; the others take the ports after it.
    #[arg(long, env = "HOLDFAST_BASE_PORT", default_value_t = 7_000, value_parser = clap::value_parser!(u16).range(1..))]
    base_port: u16,
}

/// Prints the config.
pub(crate) fn run(args: &SeedClusterConfigArgs) -> Result<()> {
    let config = topology::generate(args.nodes, args.base_port, args.shards, args.replication_factor)?;
    output::print(config.to_json().trim_end())
}
