//! `dev`: the developers' tool. Starts a cluster on this machine, fills it, tries it, and explains where things are.
//!
//! Invariant: what runs is reached over the public API, as any client would; what only an operator does is asked of the
//! nodes, as gateways ask them. Nothing here links the service.
//!
//! Deliberately unknown here: Raft, storage, and how a gateway finds a shard's leader.

mod account_id;
mod api;
mod bench;
mod certs;
mod cluster_up;
mod inspect;
mod operate;
mod output;
mod rebuild_node;
mod scenario_1;
mod scenarios;
mod secrets;
mod seed_accounts;
mod seed_cluster_config;
mod shard_key;
mod topology;
mod usage;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::api::BaseUrl;
use crate::output::Format;
use crate::scenarios::{Scenario, ScenarioArgs};

/// Starts Holdfast clusters on this machine, fills them, and tries them out.
#[derive(Debug, Parser)]
#[command(name = "dev", version)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand understands.
#[derive(Debug, Args)]
struct Global {
    /// Where the service is reached, for subcommands that call it.
    #[arg(long, env = "HOLDFAST_URL", default_value = "http://127.0.0.1:8080", global = true)]
    url: BaseUrl,
    /// Authorities in PEM to trust for https://; those of this machine when absent.
    #[arg(long, env = "HOLDFAST_CA_FILE", value_name = "FILE", global = true)]
    ca_file: Option<PathBuf>,
    /// The operator token; the variable keeps it out of the list of processes. When absent it is read from
    /// ./data/operator.token (of holdfast-standalone) or ./data/cluster/operator.token (of `dev cluster up`), whichever
    /// the service accepts; which one is used is said on standard error.
    #[arg(long, env = "HOLDFAST_OPERATOR_TOKEN", hide_env_values = true, value_name = "TOKEN", global = true)]
    operator_token: Option<String>,
    /// What results look like: text for people, or one JSON value a line for programs. `cluster up` has text only,
    /// `seed-cluster-config` and `rebuild-node` JSON only.
    #[arg(long, env = "HOLDFAST_OUTPUT", value_enum, default_value_t = Format::Text, global = true)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster on this machine, or end the upgrade of one.
    Cluster {
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Make accounts account+0001@example.com and following, each with an API key; repeating it makes no duplicates.
    SeedAccounts(seed_accounts::SeedAccountsArgs),
    /// Find or make the namespace my-namespace, acquire my-lock-1 in it for a minute, and show every answer.
    #[command(name = "scenario-1")]
    Scenario1(scenario_1::Scenario1Args),
    /// Locks are paths in a tree: a lock covers everything below it.
    #[command(name = "scenario-tree-locks")]
    TreeLocks(ScenarioArgs),
    /// Several locks at once: all of them or none.
    #[command(name = "scenario-atomic-sets")]
    AtomicSets(ScenarioArgs),
    /// Readers and writers in one queue: first come, first served.
    #[command(name = "scenario-queue")]
    Queue(ScenarioArgs),
    /// A session whose program dies: everything that it held is free soon after.
    #[command(name = "scenario-session-dies")]
    SessionDies(ScenarioArgs),
    /// Two who would wait for each other for ever: the second is refused at once.
    #[command(name = "scenario-deadlock")]
    Deadlock(ScenarioArgs),
    /// A watcher of events that loses its connection and misses nothing.
    #[command(name = "scenario-watcher-resumes")]
    WatcherResumes(ScenarioArgs),
    /// A store that refuses an owner who is late, by the fencing token.
    #[command(name = "scenario-fencing")]
    Fencing(ScenarioArgs),
    /// Measure the service in real processes, and its peers beside it with --compare etcd,redis.
    Bench(bench::BenchArgs),
    /// Make certificates to try TLS with, signed by an authority of their own.
    Certs(certs::CertsArgs),
    /// Make the cluster secret and the operator token of a new cluster.
    Secrets(secrets::SecretsArgs),
    /// Print a cluster config with equal shards and replicas spread evenly over nodes of this machine.
    SeedClusterConfig(seed_cluster_config::SeedClusterConfigArgs),
    /// Print the next cluster config after a node lost its data: it then gets its replicas from its peers, under new ids.
    RebuildNode(rebuild_node::RebuildNodeArgs),
    /// Print the shard key and the shard of an account's namespaces, and of a namespace's locks.
    ShardKey(shard_key::ShardKeyArgs),
    /// Print the cluster config that the nodes have.
    ShowConfig(operate::ShowConfigArgs),
    /// Give the next cluster config to the running nodes.
    ApplyConfig(operate::ApplyConfigArgs),
    /// Add a node to a running cluster; it keeps nothing at first.
    AddNode(operate::AddNodeArgs),
    /// Take a node that keeps nothing any more out of a running cluster.
    RemoveNode(operate::RemoveNodeArgs),
    /// Move everything that a node keeps to another one, and take it out of the cluster.
    ReplaceNode(operate::ReplaceNodeArgs),
    /// Move a shard's replica from one node to another. Can be repeated, and undone by swapping the nodes.
    MoveReplica(operate::MoveReplicaArgs),
    /// Hand leaderships over to other replicas.
    TransferLeaders(operate::TransferLeadersArgs),
    /// Write a backup of the whole cluster into a new directory.
    Backup(operate::BackupArgs),
    /// Restore a backup into the empty directories of new nodes on this machine; holdfast-node --restore-from elsewhere.
    Restore(operate::RestoreArgs),
    /// Show nodes, shards, leaders, and how far replicas are behind.
    Inspect(inspect::InspectArgs),
    /// Show what every account used; with --output json everything, a line for each account.
    Usage(usage::UsageArgs),
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Start nodes and a gateway as child processes, with one log of all; Ctrl-C stops them in order.
    Up(cluster_up::UpArgs),
    /// End an upgrade: let shards go by the rules of the new release, which all nodes run. It can't be taken back.
    Finalize(operate::FinalizeArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has seen enough, as in `dev seed-accounts | head`.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::info(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(mut cli: Cli) -> Result<()> {
    cli.global.url = api::plaintext_url(&cli.global.url, cli.global.ca_file.as_deref()).await?;
    match &cli.command {
        Command::Cluster { command: ClusterCommand::Up(args) } => cluster_up::run(args).await,
        Command::Cluster { command: ClusterCommand::Finalize(args) } => operate::finalize(args).await,
        Command::SeedAccounts(args) => seed_accounts::run(&cli.global, args).await,
        Command::Scenario1(args) => scenario_1::run(&cli.global, args).await,
        Command::TreeLocks(args) => scenarios::run(&cli.global, args, Scenario::TreeLocks).await,
        Command::AtomicSets(args) => scenarios::run(&cli.global, args, Scenario::AtomicSets).await,
        Command::Queue(args) => scenarios::run(&cli.global, args, Scenario::Queue).await,
        Command::SessionDies(args) => scenarios::run(&cli.global, args, Scenario::SessionDies).await,
        Command::Deadlock(args) => scenarios::run(&cli.global, args, Scenario::Deadlock).await,
        Command::WatcherResumes(args) => scenarios::run(&cli.global, args, Scenario::WatcherResumes).await,
        Command::Fencing(args) => scenarios::run(&cli.global, args, Scenario::Fencing).await,
        Command::Bench(args) => bench::run(args),
        Command::Certs(args) => certs::run(cli.global.output, args),
        Command::Secrets(args) => secrets::run(cli.global.output, args),
        Command::SeedClusterConfig(args) => seed_cluster_config::run(args),
        Command::RebuildNode(args) => rebuild_node::run(args),
        Command::ShardKey(args) => shard_key::run(cli.global.output, args),
        Command::ShowConfig(args) => operate::show_config(args).await,
        Command::ApplyConfig(args) => operate::apply_config(args).await,
        Command::AddNode(args) => operate::add_node(args).await,
        Command::RemoveNode(args) => operate::remove_node(args).await,
        Command::ReplaceNode(args) => operate::replace_node(args).await,
        Command::MoveReplica(args) => operate::move_replica(args).await,
        Command::TransferLeaders(args) => operate::transfer_leaders(args).await,
        Command::Backup(args) => operate::back_up(cli.global.output, args).await,
        Command::Restore(args) => operate::restore(args).await,
        Command::Inspect(args) => inspect::run(&cli.global, args).await,
        Command::Usage(args) => usage::run(&cli.global, args).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable_and_a_help_text() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                let (name, id) = (command.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name} --{id} has no help");
                let variable = argument.get_env().unwrap_or_else(|| panic!("{name} --{id} has no variable"));
                assert!(variable.to_string_lossy().starts_with("HOLDFAST_"), "{name} --{id}");
            }
            command.get_subcommands().for_each(check);
        }
        Cli::command().debug_assert();
        check(&Cli::command());
    }
}
