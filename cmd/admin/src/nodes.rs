//! `holdfast-admin node`: adds, removes and rebuilds nodes. `moves` replaces them.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use holdfast_cluster::{ClusterConfig, Node};
use holdfast_operator::output;

use crate::cluster::ClusterArgs;

/// Flags of `holdfast-admin node add`.
#[derive(Debug, Args)]
pub(crate) struct AddNodeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The id of the new node; no other node may have it.
    #[arg(long, env = "HOLDFAST_TARGET_NODE")]
    node_id: String,
    /// The address at which other nodes and gateways connect to the node.
    #[arg(long, env = "HOLDFAST_ADDRESS", value_name = "HOST:PORT")]
    address: String,
    /// The address at which clients connect to the node's gateway, if it has one (`--gateway-listen` of the node).
    #[arg(long, env = "HOLDFAST_GATEWAY_ADDRESS", value_name = "HOST:PORT")]
    gateway_address: Option<String>,
}

/// Flags of `holdfast-admin node remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveNodeArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The node, which must have no replicas.
    #[arg(long, env = "HOLDFAST_TARGET_NODE")]
    node_id: String,
}

/// Flags of `holdfast-admin node rebuild`.
#[derive(Debug, Args)]
pub(crate) struct RebuildNodeArgs {
    /// The node that will copy all its replicas from its peers.
    #[arg(long, env = "HOLDFAST_NODE_ID")]
    node_id: String,
    /// The config that the cluster uses now.
    #[arg(long, env = "HOLDFAST_CLUSTER_CONFIG", default_value = "cluster_config.json", value_name = "FILE")]
    cluster_config: PathBuf,
}

/// Adds an empty node. If the node is in the config with these addresses, nothing changes.
pub(crate) async fn add(args: &AddNodeArgs) -> Result<()> {
    let mut cluster = args.cluster.connect().await?;
    let (id, address) = (&args.node_id, &args.address);
    let (gateway_address, zone) =
        (args.gateway_address.clone(), cluster.config.node(id).and_then(|it| it.zone.clone()));
    let node = Node { id: id.clone(), address: address.clone(), gateway_address, zone };
    if cluster.config.node(id) != Some(&node) {
        let next = cluster.config.add_node(node)?;
        cluster.push_config(next).await?;
    }
    output::print(format_args!(
        "{id} belongs to the cluster, at {address}. Start it with the config in {} and an empty data directory:\n  \
         holdfast-node --node-id {id} --cluster-config FILE --data-dir DIR --cluster-secret-file FILE \
         --operator-token-file FILE\nThen move replicas to it with `holdfast-admin replica move` or `holdfast-admin node \
         replace`.",
        cluster.file.display()
    ))
}

/// Removes a node without replicas.
pub(crate) async fn remove(args: &RemoveNodeArgs) -> Result<()> {
    let mut cluster = args.cluster.connect().await?;
    let id = &args.node_id;
    cluster.node(id)?;
    let next = cluster.config.remove_node(id)?;
    cluster.push_config(next).await?;
    output::print(format_args!("{id} does not belong to the cluster any more: stop it, and remove its data"))
}

/// Prints the next config for a node whose data is lost or damaged, and the steps that follow.
pub(crate) fn rebuild(args: &RebuildNodeArgs) -> Result<()> {
    let current = ClusterConfig::load(&args.cluster_config)?;
    let next = current.rebuild_node(&args.node_id)?;
    let node = &args.node_id;
    output::info(format_args!(
        "config version {} gives {node} new replica ids. Move the data directory of {node} away while it is stopped, \
         send this config to the other nodes (`holdfast-admin config apply`), and start {node} with it. It is ready \
         (/readyz) when it has copied all its replicas from its peers.",
        next.version
    ));
    output::print(next.to_json().trim_end())
}
