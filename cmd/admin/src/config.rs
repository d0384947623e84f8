//! `holdfast-admin config`: the cluster config of the running nodes.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use holdfast_cluster::{ClusterConfig, MAX_ADVISED_GROUPS};
use holdfast_operator::output;

use crate::cluster::ClusterArgs;

/// Flags of `holdfast-admin config show`.
#[derive(Debug, Args)]
pub(crate) struct ShowConfigArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print the form without groups. Only a cluster that is as `dev seed-cluster-config` made it has one.
    #[arg(long, env = "HOLDFAST_SEED_FORM")]
    seed_form: bool,
    /// Print how many groups each node has instead, and what is wrong with that.
    #[arg(long, env = "HOLDFAST_CONFIG_CHECK", conflicts_with = "seed_form")]
    check: bool,
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
    if args.check {
        return output::print(checked(&cluster.config));
    }
    let text = if args.seed_form {
        let seed = cluster.config.to_seed_json();
        seed.context("this cluster is not as it was made any more, so its config needs groups: leave out --seed-form")?
    } else {
        cluster.config.to_json()
    };
    output::print(text.trim_end())
}

/// Says how many groups a config has on each node, which nodes have more than is good, and which groups could be in more
/// zones.
fn checked(config: &ClusterConfig) -> String {
    let mut lines = vec![format!("groups: {}", config.groups.len())];
    for node in &config.nodes {
        let groups = config.groups_on(&node.id);
        let advice = if groups > MAX_ADVISED_GROUPS {
            format!(": more than {MAX_ADVISED_GROUPS} cost CPU; put shards with the same nodes into one group")
        } else {
            String::new()
        };
        lines.push(format!("{}: {groups}{advice}", node.id));
    }
    for group in config.groups.iter().filter(|group| config.shares_zone(group)) {
        lines.push(format!("{}: replicas share a zone, and the cluster has more", group.id));
    }
    lines.join("\n")
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
