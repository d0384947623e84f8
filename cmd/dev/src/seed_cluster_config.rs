//! `dev seed-cluster-config`: a config to start from.

use anyhow::Result;
use clap::Args;
use holdfast_operator::output;

use crate::topology;

/// Flags of `dev seed-cluster-config`.
#[derive(Debug, Args)]
pub(crate) struct SeedClusterConfigArgs {
    /// How many nodes the cluster has.
    #[arg(long, env = "HOLDFAST_NODES", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(topology::MAX_NODES)))]
    nodes: u16,
    /// How many shards Namespaces and Locks have each; Accounts always has one.
    #[arg(long, env = "HOLDFAST_SHARDS", default_value_t = topology::DEFAULT_SHARDS)]
    shards: u32,
    /// How many nodes keep a replica of each shard [default: 3, or all nodes when there are fewer].
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
