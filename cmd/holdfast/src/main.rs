//! `holdfast`: a user's command line. Runs commands under a lock, and shows and changes locks, sessions, namespaces and
//! keys.
//!
//! Invariant: a command that runs under a lock is told to stop before the lock can be another one's, and killed when it
//! does not.
//!
//! Deliberately unknown here: how the service is reached, which the client library knows.

mod calls;
mod get;
mod key;
mod lock;
mod ls;
mod names;
mod namespace;
mod output;
mod render;
mod sessions;
mod settings;
mod signals;
mod status;
mod table;
mod unlock;
mod watch;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::settings::{Global, Settings};

/// Exit status of calls that nobody understands.
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
    /// Take a lock and run a command while holding it, or take it for a time.
    ///
    /// With a command: runs it, stops it before the lock can be lost, and exits with its status. Without one: takes the
    /// lock for --ttl and says how to unlock it. Exits with 75 when the lock was not got.
    Lock(lock::LockArgs),
    /// Give back a lock that was taken without a command, or force one open.
    Unlock(unlock::UnlockArgs),
    /// Show a lock and who holds it.
    Get(get::GetArgs),
    /// List the locks that are held.
    Ls(ls::LsArgs),
    /// Print what happens in the namespace, as it happens.
    Watch(watch::WatchArgs),
    /// List the sessions of the namespace, show one, or end one.
    Sessions(sessions::SessionsArgs),
    /// Make, list, show, change and delete namespaces.
    #[command(subcommand)]
    Namespace(namespace::NamespaceCommand),
    /// Make, list and revoke API keys of the own account.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Say which gateways answer, and whether the key is good.
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
        // Whoever reads the output has seen enough, as in `holdfast ls | head`.
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
        Command::Status => return status::run(&settings).await,
        // It needs no service, and was done before.
        Command::RunSupervised(_) => {}
        Command::Unlock(args) => unlock::run(&settings, args).await?,
        Command::Get(args) => get::run(&settings, args).await?,
        Command::Ls(args) => ls::run(&settings, args).await?,
        Command::Watch(args) => watch::run(&settings, args).await?,
        Command::Sessions(args) => sessions::run(&settings, args).await?,
        Command::Namespace(command) => namespace::run(&settings, command).await?,
        Command::Key(command) => key::run(&settings, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever says nothing sees what can be said; the parser's own complaint would name what is hidden, too.
fn exit_with_usage(error: &clap::Error) -> ! {
    if error.kind() != ErrorKind::MissingSubcommand {
        error.exit();
    }
    // Where nobody listens there is nobody to complain to.
    let _ = write!(io::stderr().lock(), "{}", Cli::command().render_help());
    std::process::exit(USAGE_ERROR);
}

/// Ends the program as wrong flags do.
fn exit_misused(why: &str) -> ! {
    Cli::command().error(ErrorKind::ArgumentConflict, why).exit()
}
