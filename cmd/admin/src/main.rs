//! `holdfast-admin`: production operations on a cluster. Changes nodes, replicas and leaders, backs up and restores, and
//! shows what shards failed at.
//!
//! Invariant: each change is a new version of the cluster config that the nodes check, so an interrupted command is
//! continued by running it again.
//!
//! Deliberately unknown here: Raft, storage, and what the state of a shard means.

mod backup;
mod cluster;
mod config;
mod files;
mod finalize;
mod inspect;
mod leaders;
mod moves;
mod nodes;
mod restore;
mod secrets;
mod shards;
mod usage;
mod wait;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use holdfast_operator::{ServiceArgs, output, status};

/// Operates Holdfast clusters. Subcommands with --cluster-config connect to the nodes; status and usage call a gateway.
#[derive(Debug, Parser)]
#[command(name = "holdfast-admin", version)]
struct Cli {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show nodes, groups, shards, leaders, failed replicas, and how far replicas are behind.
    Status(status::StatusArgs),
    /// Show or replace the cluster config of the running nodes.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Add, remove, replace or rebuild a node.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Move replicas.
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// Move leaderships.
    #[command(subcommand)]
    Leader(LeaderCommand),
    /// Finalize the upgrade of a cluster.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Show what nodes store for the case of a failure.
    #[command(subcommand)]
    Inspect(InspectCommand),
    /// Rebuild a failed shard from the state on one node. Without this, it is rebuilt once most nodes agree on its state.
    RebuildShard(shards::RebuildShardArgs),
    /// Leave out what a shard failed at on all nodes, so that it serves again. It cannot be undone.
    Quarantine(shards::QuarantineArgs),
    /// Back up the whole cluster to a new directory.
    Backup(backup::BackupArgs),
    /// Restore a backup to empty directories of new nodes on this machine; elsewhere, use holdfast-node --restore-from.
    Restore(restore::RestoreArgs),
    /// Create the cluster secret and the operator token of a new cluster.
    Secrets(secrets::SecretsArgs),
    /// Show the usage of every account; --output json prints all of it, one account a line.
    Usage(usage::UsageArgs),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the cluster config of the nodes.
    Show(config::ShowConfigArgs),
    /// Send the next cluster config to the running nodes.
    Apply(config::ApplyConfigArgs),
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// Add an empty node to a running cluster.
    Add(nodes::AddNodeArgs),
    /// Remove an empty node from a running cluster.
    Remove(nodes::RemoveNodeArgs),
    /// Move all replicas of a node to another one, and remove the node from the cluster.
    Replace(moves::ReplaceNodeArgs),
    /// Print the next cluster config after a node lost its data. With it, the node copies its replicas from its peers.
    Rebuild(nodes::RebuildNodeArgs),
}

#[derive(Debug, Subcommand)]
enum ReplicaCommand {
    /// Move replicas of groups from one node to another. To undo a move, swap the nodes.
    Move(moves::MoveReplicaArgs),
}

#[derive(Debug, Subcommand)]
enum LeaderCommand {
    /// Transfer leaderships of groups to other replicas.
    Transfer(leaders::TransferLeadersArgs),
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Let shards use the rules of the new release, which all nodes run. It cannot be undone.
    Finalize(finalize::FinalizeArgs),
}

#[derive(Debug, Subcommand)]
enum InspectCommand {
    /// Show the entries that shards failed at for good, on each node, and whether all nodes failed alike.
    Poison(inspect::InspectPoisonArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    output::exit_code(run(Cli::parse()).await)
}

async fn run(mut cli: Cli) -> Result<()> {
    let format = cli.service.output;
    match &cli.command {
        Command::Status(args) => {
            cli.service.start_tls_proxy().await?;
            status::run(&cli.service, args).await
        }
        Command::Usage(args) => {
            cli.service.start_tls_proxy().await?;
            usage::run(&cli.service, args).await
        }
        Command::Config(ConfigCommand::Show(args)) => config::print_config(args).await,
        Command::Config(ConfigCommand::Apply(args)) => config::apply_config(args).await,
        Command::Node(NodeCommand::Add(args)) => nodes::add(args).await,
        Command::Node(NodeCommand::Remove(args)) => nodes::remove(args).await,
        Command::Node(NodeCommand::Replace(args)) => moves::replace_node(args).await,
        Command::Node(NodeCommand::Rebuild(args)) => nodes::rebuild(args),
        Command::Replica(ReplicaCommand::Move(args)) => moves::move_replica(args).await,
        Command::Leader(LeaderCommand::Transfer(args)) => leaders::transfer(args).await,
        Command::Cluster(ClusterCommand::Finalize(args)) => finalize::finalize(args).await,
        Command::Inspect(InspectCommand::Poison(args)) => inspect::print_poison(format, args).await,
        Command::RebuildShard(args) => shards::rebuild(args).await,
        Command::Quarantine(args) => shards::quarantine(args).await,
        Command::Backup(args) => backup::back_up(format, args).await,
        Command::Restore(args) => restore::restore(args).await,
        Command::Secrets(args) => secrets::run(format, args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use holdfast_operator::assert_flags_documented;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable_and_a_help_text() {
        Cli::command().debug_assert();
        assert_flags_documented(&Cli::command());
    }
}
