//! Nodes that come and go, and the config that says so.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use holdfast_cluster::ClusterConfig;

use super::ClusterArgs;
use crate::output;

/// Flags of `dev show-config`.
#[derive(Debug, Args)]
pub(crate) struct ShowConfigArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Flags of `dev add-node`.
#[derive(Debug, Args)]
pub(crate) struct AddNodeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The id of the new node, which no node has.
    #[arg(long, env = "HOLDFAST_TARGET_NODE")]
    node_id: String,
    /// Where the others and the gateways reach it.
    #[arg(long, env = "HOLDFAST_ADDRESS", value_name = "HOST:PORT")]
    address: String,
}

/// Flags of `dev remove-node`.
#[derive(Debug, Args)]
pub(crate) struct RemoveNodeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The node, which keeps no replicas any more.
    #[arg(long, env = "HOLDFAST_TARGET_NODE")]
    node_id: String,
}

/// Prints the config that the nodes have, and which of them have another one.
pub(crate) async fn show_config(args: &ShowConfigArgs) -> Result<()> {
    let cluster = args.cluster.connect().await?;
    for (node, said) in cluster.operations.statuses(&cluster.config).await {
        match said {
            Ok(said) if said.config_version == cluster.config.version => {}
            Ok(said) => output::info(format_args!("node {} has version {}", node.id, said.config_version)),
            Err(error) => output::info(error),
        }
    }
    output::print(cluster.config.to_json().trim_end())
}

/// Adds a node that keeps nothing yet. One that is there already, at that address, changes nothing.
pub(crate) async fn add_node(args: &AddNodeArgs) -> Result<()> {
    let mut cluster = args.cluster.connect().await?;
    let (id, address) = (&args.node_id, &args.address);
    if cluster.config.node(id).is_none_or(|node| node.address != *address) {
        let next = cluster.config.add_node(id, address)?;
        cluster.push_config(next).await?;
    }
    output::print(format_args!(
        "{id} belongs to the cluster, at {address}. Start it with the config in {} and an empty data directory:\n  \
         holdfast-node --node-id {id} --cluster-config FILE --data-dir DIR --cluster-secret-file FILE \
         --operator-token-file FILE\nthen move replicas there with `dev move-replica` or `dev replace-node`.",
        cluster.file.display()
    ))
}

/// Removes a node that keeps nothing any more.
pub(crate) async fn remove_node(args: &RemoveNodeArgs) -> Result<()> {
    let mut cluster = args.cluster.connect().await?;
    let id = &args.node_id;
    cluster.node(id)?;
    let next = cluster.config.remove_node(id)?;
    cluster.push_config(next).await?;
    output::print(format_args!("{id} does not belong to the cluster any more: stop it, and remove its data"))
}

/// Flags of `dev apply-config`.
#[derive(Debug, Args)]
pub(crate) struct ApplyConfigArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The next config, as `dev rebuild-node` prints it.
    #[arg(long, env = "HOLDFAST_NEXT_CONFIG", value_name = "FILE")]
    next: PathBuf,
}

/// Gives a config to the running nodes. The one that they have changes nothing.
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
