//! `holdfast lock`.

mod command;
mod detached;
mod guarded;
pub(crate) mod supervisor;
mod wait_progress;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use holdfast_client::{Error, Path, Reason};
use rustix::process::Signal;

pub(crate) use guarded::is_line;

use crate::names::LockName;
use crate::output::Format;
use crate::settings::Settings;
use crate::signals::parse_signal;
pub(crate) use guarded::{next_terminating_signal, signal_exit_code};

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
    /// How long after its grant nobody else gets the lock, however it ends: for a job that must not run twice in that
    /// time on machines whose clocks differ. Up to 24 h.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    at_least: Duration,
    #[command(flatten)]
    on_request: OnRequest,
    /// The command to run while holding the lock, after `--`. Its variable HOLDFAST_FENCING_TOKEN contains the fencing
    /// token.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What happens when somebody asks for what a command holds.
#[derive(Debug, Args)]
pub(crate) struct OnRequest {
    /// The signal that the command gets when somebody asks for what it holds, such as `TERM` or `USR1`; none when
    /// absent.
    #[arg(long, env = "HOLDFAST_RELEASE_SIGNAL", value_parser = parse_signal, value_name = "SIGNAL")]
    pub(crate) release_signal: Option<Signal>,
}

/// What a command holds while it runs, and how long that is waited for.
#[derive(Debug)]
pub(crate) struct GuardedRun {
    pub(crate) target: Target,
    /// How long the session lives without keep-alives.
    pub(crate) ttl: Duration,
    /// Forever when absent.
    pub(crate) wait: Option<Duration>,
    /// What the command gets when somebody asks for what it holds.
    pub(crate) release_signal: Option<Signal>,
}

/// What is held while a command runs.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A lock, for reading or for writing.
    Lock { path: Path, read: bool, at_least: Duration },
    /// Permits of a semaphore.
    Permits { path: Path, weight: u64, permits: Option<u64>, priority: u8 },
    /// A lock for writing, once a condition of it was signalled.
    Signalled { path: Path, condition: String },
    /// Members of a pool: so many, or the one of that name.
    Members { path: Path, count: u64, member: Option<String>, priority: u8 },
}

impl Target {
    fn path(&self) -> &Path {
        match self {
            Self::Lock { path, .. } | Self::Permits { path, .. } | Self::Members { path, .. } => path,
            Self::Signalled { path, .. } => path,
        }
    }
}

/// Acquires the lock, and runs the command, if any.
pub(crate) async fn run(settings: &Settings, args: LockArgs) -> Result<ExitCode> {
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(ExitCode::from(detached::run(settings, &args).await?));
    };
    // A variable that is set for other calls does no harm here.
    if args.owner.is_some() && args.owner != std::env::var("HOLDFAST_OWNER").ok() {
        crate::exit_misused("--owner goes without a command only: a command's lock is its own");
    }
    let target = Target::Lock { path: args.lock.path(), read: args.read, at_least: args.at_least };
    let release_signal = args.on_request.release_signal;
    let run = GuardedRun { target, ttl: args.ttl, wait: args.wait, release_signal };
    run_guarded(settings, &run, program, arguments).await
}

/// Waits, and runs the command. Returns its status, or 75 if what it needs was not acquired.
pub(crate) async fn run_guarded(
    settings: &Settings,
    run: &GuardedRun,
    program: &OsStr,
    arguments: &[OsString],
) -> Result<ExitCode> {
    Ok(ExitCode::from(guarded::run(settings, run, program, arguments).await?))
}

/// Reports why the lock was not acquired.
fn report_not_locked(format: Format, why: &Error) -> u8 {
    report_not_acquired(format, "not locked", why)
}

pub(crate) fn report_not_acquired(format: Format, what: &str, why: &Error) -> u8 {
    let code = match why {
        Error::TimedOut(_) => Some(Reason::TimedOut.code()),
        other => other.refusal().map(|refusal| refusal.reason.code()).or(other.code()),
    };
    format.error(code, format_args!("{what}: {why}"));
    NOT_LOCKED
}
