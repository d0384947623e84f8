//! `holdfast`: the command line for users. Runs commands under a lock, at once or after a signal; shows and changes
//! locks, semaphores, pools, latches, barriers, sessions, namespaces and keys.
//!
//! Invariant: a command that runs under a lock is asked to stop before another owner can get the lock, and killed if it
//! does not stop.
//!
//! Deliberately unknown here: how to reach the service, which the client library knows.

mod ask;
mod barrier;
mod calls;
mod condition;
mod get;
mod key;
mod latch;
mod lock;
mod ls;
mod names;
mod namespace;
mod output;
mod pages;
mod pool;
mod render;
mod semaphore;
mod sessions;
mod settings;
mod signals;
mod status;
mod table;
mod unlock;
mod usage;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::settings::{Global, Settings};

/// Exit status of invalid command lines.
const USAGE_ERROR: i32 = 2;

/// Distributed locks from the shell.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Acquire a lock and run a command while holding it, or acquire it for a time.
    ///
    /// With a command: runs it, stops it before the lock can be lost, and exits with its status. Without one: acquires
    /// the lock for --ttl and prints how to unlock it. Exits with 75 when the lock was not acquired.
    Lock(lock::LockArgs),
    /// Acquire a lock, give it up until a condition of it is signalled, and run a command while holding it again.
    ///
    /// Exits with 75 when that did not happen in time.
    WaitFor(condition::WaitForArgs),
    /// Wake one that awaits a condition of a lock, or all: acquires the lock for that.
    ///
    /// Exits with 75 when the lock was not acquired.
    Signal(condition::SignalArgs),
    /// Release a lock that was acquired without a command, or force one open.
    Unlock(unlock::UnlockArgs),
    /// Ask whoever holds a lock, permits or members of a pool to release them.
    Ask(ask::AskArgs),
    /// Show a lock and its holders.
    Get(get::GetArgs),
    /// List the held locks.
    Ls(ls::LsArgs),
    /// Hold named members of a pool, such as test databases.
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// Limit how many run at a time: semaphores.
    #[command(subcommand, name = "sem")]
    Semaphore(semaphore::SemaphoreCommand),
    /// Count jobs that are done, and wait until all are: latches.
    #[command(subcommand)]
    Latch(latch::LatchCommand),
    /// Let so many meet and go on together: barriers.
    #[command(subcommand)]
    Barrier(barrier::BarrierCommand),
    /// Print the events of the namespace as they happen.
    Watch(watch::WatchArgs),
    /// List the sessions of the namespace, show one, or end one.
    Sessions(sessions::SessionsArgs),
    /// Create, list, show, change and delete namespaces.
    #[command(subcommand)]
    Namespace(namespace::NamespaceCommand),
    /// Create, list and revoke API keys of the account.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Show how much of its limits the account uses.
    Usage,
    /// Show which gateways respond, and whether the key is valid.
    Status,
    #[command(name = lock::supervisor::SUBCOMMAND, hide = true)]
    RunSupervised(lock::supervisor::SupervisorArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| exit_with_usage(&error));
    let format = cli.global.output;
    if let Command::RunSupervised(args) = &cli.command {
        return lock::supervisor::run(format, args);
    }
    match run(cli).await {
        Ok(code) => code,
        // The reader of the output has seen enough, as in `holdfast ls | head`.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(format, &error);
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let settings = Settings::new(cli.global)?;
    match cli.command {
        Command::Lock(args) => return lock::run(&settings, args).await,
        Command::WaitFor(args) => return condition::wait_for(&settings, args).await,
        Command::Signal(args) => return condition::signal(&settings, args).await,
        Command::Pool(command) => return pool::run(&settings, command).await,
        Command::Semaphore(command) => return semaphore::run(&settings, command).await,
        Command::Latch(command) => return latch::run(&settings, command).await,
        Command::Barrier(command) => return barrier::run(&settings, command).await,
        Command::Status => return status::run(&settings).await,
        // It needs no service, and was handled before.
        Command::RunSupervised(_) => {}
        Command::Unlock(args) => unlock::run(&settings, args).await?,
        Command::Ask(args) => ask::run(&settings, args).await?,
        Command::Get(args) => get::run(&settings, args).await?,
        Command::Ls(args) => ls::run(&settings, args).await?,
        Command::Watch(args) => watch::run(&settings, args).await?,
        Command::Sessions(args) => sessions::run(&settings, args).await?,
        Command::Namespace(command) => namespace::run(&settings, command).await?,
        Command::Key(command) => key::run(&settings, command).await?,
        Command::Usage => usage::run(&settings).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the help if there is no subcommand; the parser's own error would list hidden subcommands, too.
fn exit_with_usage(error: &clap::Error) -> ! {
    if error.kind() != ErrorKind::MissingSubcommand {
        error.exit();
    }
    // If standard error is closed, nothing can be reported.
    let _ = write!(io::stderr().lock(), "{}", Cli::command().render_help());
    std::process::exit(USAGE_ERROR);
}

/// Exits as for invalid flags.
fn exit_misused(why: &str) -> ! {
    Cli::command().error(ErrorKind::ArgumentConflict, why).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the description of the API lists of this program, each without its backticks.
    fn documented() -> Vec<&'static str> {
        let text = include_str!("../../../docs/api.md");
        let (_, list) = text.split_once("- `holdfast`: the users' command line.").expect("it is described");
        let (list, _) = list.split_once("It takes").expect("the list ends");
        list.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn every_command_has_a_help_text_and_is_documented() {
        let command = Cli::command();
        command.clone().debug_assert();
        let documented = documented();
        let mut expected = Vec::new();
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            let actions: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            let shown = match actions.as_slice() {
                [] => command.get_name().to_owned(),
                actions => format!("{} {}", command.get_name(), actions.join("|")),
            };
            let is_shown =
                |text: &&str| **text == shown || (actions.is_empty() && text.starts_with(&format!("{shown} ")));
            assert_eq!(documented.iter().filter(|text| is_shown(text)).count(), 1, "docs/api.md should list `{shown}`");
            expected.push(shown);
        }
        assert_eq!(documented.len(), expected.len(), "docs/api.md lists {documented:?}");
    }
}
