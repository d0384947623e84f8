//! `dev`: the developers' tool. Starts a cluster on this machine, fills it, runs scenarios, and shows the location of
//! data.
//!
//! Invariant: `dev` calls a running cluster over its public API only, as any client does, and starts other programs for
//! what needs more, or leaves it to the `dev cluster up` that runs the cluster. It links no server.
//!
//! Deliberately unknown here: Raft, storage, how a gateway finds a shard's leader, and the operations of
//! `holdfast-admin`.

mod bench;
mod certs;
mod cluster_up;
mod moved;
mod scenario_1;
mod scenarios;
mod seed_accounts;
mod seed_cluster_config;
mod shard_key;
mod topology;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use holdfast_operator::{ServiceArgs, output, status};

use crate::scenarios::{RebuildArgs, Scenario, ScenarioArgs};

/// Starts Holdfast clusters on this machine, fills them, and tries them out.
#[derive(Debug, Parser)]
#[command(name = "dev", version)]
struct Cli {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster on this machine.
    Cluster {
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Create accounts account+0001@example.com and following, each with an API key; repeating it creates no
    /// duplicates.
    SeedAccounts(seed_accounts::SeedAccountsArgs),
    /// Find or create the namespace my-namespace, acquire my-lock-1 in it for a minute, and show every response.
    #[command(name = "scenario-1")]
    Scenario1(scenario_1::Scenario1Args),
    /// Locks are paths in a tree: a lock covers everything below it.
    #[command(name = "scenario-tree-locks")]
    TreeLocks(ScenarioArgs),
    /// Several locks at once: all of them or none.
    #[command(name = "scenario-atomic-sets")]
    AtomicSets(ScenarioArgs),
    /// Readers and writers in one FIFO queue.
    #[command(name = "scenario-queue")]
    Queue(ScenarioArgs),
    /// A session whose program dies: its locks are free soon after.
    #[command(name = "scenario-session-dies")]
    SessionDies(ScenarioArgs),
    /// Two owners that would wait for each other forever: the second request is refused at once.
    #[command(name = "scenario-deadlock")]
    Deadlock(ScenarioArgs),
    /// A watcher of events that loses its connection and misses no event.
    #[command(name = "scenario-watcher-resumes")]
    WatcherResumes(ScenarioArgs),
    /// A store that rejects a late owner by its fencing token.
    #[command(name = "scenario-fencing")]
    Fencing(ScenarioArgs),
    /// Conditions: a lock that is given up until another owner signals.
    #[command(name = "scenario-condition")]
    Condition(ScenarioArgs),
    /// Semaphores: so many permits at a time, and a queue that nobody passes.
    #[command(name = "scenario-semaphore")]
    Semaphore(ScenarioArgs),
    /// Pools: holds of named members, any of them or one by its name.
    #[command(name = "scenario-pool")]
    Pool(ScenarioArgs),
    /// Latches: jobs count once each, and whoever waits goes on when all are done.
    #[command(name = "scenario-latch")]
    Latch(ScenarioArgs),
    /// Barriers: so many meet again and again, and nobody waits for the dead.
    #[command(name = "scenario-barrier")]
    Barrier(ScenarioArgs),
    /// Requests to release a lock, and a lock with a minimum hold time.
    #[command(name = "scenario-asking-back")]
    AskingBack(ScenarioArgs),
    /// Locks in the memory of a leader: what becomes of them when its process is killed. Without a `dev cluster up` of
    /// this machine, the leadership moves to another node instead.
    #[command(name = "scenario-rebuild")]
    Rebuild(RebuildArgs),
    /// Measure the service in real processes, and compare it with its peers with --compare etcd,redis.
    Bench(bench::BenchArgs),
    /// Create certificates for TLS experiments, signed by their own authority.
    Certs(certs::CertsArgs),
    /// Print a cluster config with equal shards, in groups spread evenly over nodes of this machine.
    SeedClusterConfig(seed_cluster_config::SeedClusterConfigArgs),
    /// Print the shard key and the shard of an account's namespaces, and of a namespace's locks.
    ShardKey(shard_key::ShardKeyArgs),
    /// Show nodes, shards, leaders, and how far replicas are behind.
    Inspect(status::StatusArgs),
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Start nodes and a gateway as child processes, with one log of all; Ctrl-C stops them in order.
    Up(cluster_up::UpArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    output::exit_code(run().await)
}

async fn run() -> Result<()> {
    let matches = moved::add_to(Cli::command()).get_matches();
    if let Some(error) = moved::error_for(&matches) {
        bail!(error);
    }
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.service.start_tls_proxy().await?;
    match &cli.command {
        Command::Cluster { command: ClusterCommand::Up(args) } => cluster_up::run(args).await,
        Command::SeedAccounts(args) => seed_accounts::run(&cli.service, args).await,
        Command::Scenario1(args) => scenario_1::run(&cli.service, args).await,
        Command::TreeLocks(args) => scenarios::run(&cli.service, args, Scenario::TreeLocks).await,
        Command::AtomicSets(args) => scenarios::run(&cli.service, args, Scenario::AtomicSets).await,
        Command::Queue(args) => scenarios::run(&cli.service, args, Scenario::Queue).await,
        Command::SessionDies(args) => scenarios::run(&cli.service, args, Scenario::SessionDies).await,
        Command::Deadlock(args) => scenarios::run(&cli.service, args, Scenario::Deadlock).await,
        Command::WatcherResumes(args) => scenarios::run(&cli.service, args, Scenario::WatcherResumes).await,
        Command::Fencing(args) => scenarios::run(&cli.service, args, Scenario::Fencing).await,
        Command::Condition(args) => scenarios::run(&cli.service, args, Scenario::Condition).await,
        Command::Semaphore(args) => scenarios::run(&cli.service, args, Scenario::Semaphore).await,
        Command::Pool(args) => scenarios::run(&cli.service, args, Scenario::Pool).await,
        Command::Latch(args) => scenarios::run(&cli.service, args, Scenario::Latch).await,
        Command::Barrier(args) => scenarios::run(&cli.service, args, Scenario::Barrier).await,
        Command::AskingBack(args) => scenarios::run(&cli.service, args, Scenario::AskingBack).await,
        Command::Rebuild(args) => scenarios::run(&cli.service, &args.scenario, Scenario::Rebuild(args)).await,
        Command::Bench(args) => bench::run(args),
        Command::Certs(args) => certs::run(cli.service.output, args),
        Command::SeedClusterConfig(args) => seed_cluster_config::run(args),
        Command::ShardKey(args) => shard_key::run(cli.service.output, args),
        Command::Inspect(args) => status::run(&cli.service, args).await,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_operator::assert_flags_documented;

    use super::*;

    #[test]
    fn every_flag_has_an_environment_variable_and_a_help_text() {
        Cli::command().debug_assert();
        assert_flags_documented(&Cli::command());
    }

    #[test]
    fn no_subcommand_has_the_name_of_one_that_moved() {
        moved::add_to(Cli::command()).debug_assert();
    }
}
