//! `dev rebuild-node`: the next cluster config when a node has lost its data, or has damaged data.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use holdfast_cluster::ClusterConfig;

use crate::output;

/// Flags of `dev rebuild-node`.
#[derive(Debug, Args)]
pub(crate) struct RebuildNodeArgs {
    /// The node that is to get all its replicas from its peers.
    #[arg(long, env = "HOLDFAST_NODE_ID")]
    node_id: String,
    /// The config that the cluster runs with now.
    #[arg(long, env = "HOLDFAST_CLUSTER_CONFIG", default_value = "cluster_config.json", value_name = "FILE")]
    cluster_config: PathBuf,
}

/// Prints the next config, and says what to do with it.
pub(crate) fn run(args: &RebuildNodeArgs) -> Result<()> {
    let current = ClusterConfig::load(&args.cluster_config)?;
    let next = current.rebuild_node(&args.node_id)?;
    let node = &args.node_id;
    output::info(format_args!(
        "config version {} gives {node} new replica ids. Move the data directory of {node} away while it is stopped, \
         give this config to the other nodes (`dev apply-config`), and start {node} with it. It is ready (/readyz) once \
         it has everything from its peers.",
        next.version
    ));
    output::print(next.to_json().trim_end())
}
