//! `holdfast-admin config`: the cluster config of the running nodes.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use holdfast_cluster::ClusterConfig;
use holdfast_operator::output;

use crate::cluster::ClusterArgs;

/// Flags of `holdfast-admin config show`.
#[derive(Debug, Args)]
pub(crate) struct ShowConfigArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Flags of `holdfast-admin config apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyConfigArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The next config, as `holdfast-admin node rebuild` prints it.
    #[arg(long, env = "HOLDFAST_NEXT_CONFIG", value_name = "FILE")]
    next: PathBuf,
}

/// Prints the latest config of the nodes, and reports nodes that have another version.
pub(crate) async fn print_config(args: &ShowConfigArgs) -> Result<()> {
    let cluster = args.cluster.connect().await?;
    for (node, status) in cluster.operations.statuses(&cluster.config).await {
        match status {
            Ok(status) if status.config_version == cluster.config.version => {}
            Ok(status) => output::info(format_args!("node {} has version {}", node.id, status.config_version)),
            Err(error) => output::info(error),
        }
    }
    output::print(cluster.config.to_json().trim_end())
}

/// Sends a config to the running nodes. Resending their current config changes nothing.
pub(crate) async fn apply_config(args: &ApplyConfigArgs) -> Result<()> {
    let next = ClusterConfig::load(&args.next)?;
    let mut cluster = args.cluster.connect().await?;
    if next != cluster.config {
        cluster.config.check_transition(&next)?;
    }
    let version = next.version;
    cluster.push_config(next).await?;
    output::print(format_args!("the cluster has config version {version}"))
}
