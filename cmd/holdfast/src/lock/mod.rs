//! `holdfast lock`.

mod command;
mod detached;
mod guarded;
pub(crate) mod supervisor;
mod wait_progress;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use holdfast_client::{Error, Reason};

use crate::names::LockName;
use crate::output::Format;
use crate::settings::Settings;

/// Exit status when the lock was not acquired: "try again later".
const NOT_LOCKED: u8 = 75;

/// Flags of `holdfast lock`.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    #[command(flatten)]
    lock: LockName,
    /// Share the lock with other readers.
    #[arg(long)]
    read: bool,
    /// How long the lock lives without keep-alives. With a command, which is kept alive: 1 s to 10 min; the command is
    /// asked to stop when a third of it is left. Without a command the lock ends after it: 100 ms to 24 h.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    ttl: Duration,
    /// How long to wait for the lock; forever when absent. `0s` does not wait.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
    /// The owner of a lock that is acquired without a command: 1 to 128 bytes. The same owner gets the same lock.
    /// [default: a unique one, which is printed]
    #[arg(long, env = "HOLDFAST_OWNER", value_name = "NAME")]
    owner: Option<String>,
    /// The command to run while holding the lock, after `--`. Its variable HOLDFAST_FENCING_TOKEN contains the fencing
    /// token.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Acquires the lock, and runs the command, if any.
pub(crate) async fn run(settings: &Settings, args: LockArgs) -> Result<ExitCode> {
    let code = match args.command.split_first() {
        Some((program, arguments)) => guarded::run(settings, &args, program, arguments).await?,
        None => detached::run(settings, &args).await?,
    };
    Ok(ExitCode::from(code))
}

/// Reports why the lock was not acquired.
fn report_not_locked(format: Format, why: &Error) -> u8 {
    let code = match why {
        Error::TimedOut(_) => Some(Reason::TimedOut.code()),
        other => other.refusal().map(|refusal| refusal.reason.code()).or(other.code()),
    };
    format.error(code, format_args!("not locked: {why}"));
    NOT_LOCKED
}
