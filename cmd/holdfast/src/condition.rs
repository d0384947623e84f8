//! `holdfast wait-for` and `holdfast signal`: conditions of a lock.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use holdfast_client::{Error, Guard, Session};
use serde_json::json;

use crate::lock::{GuardedRun, OnRequest, Target, report_not_acquired, run_guarded};
use crate::names::{LockName, process_id, user_at_host};
use crate::settings::Settings;

/// Flags of `holdfast wait-for`.
#[derive(Debug, Args)]
pub(crate) struct WaitForArgs {
    #[command(flatten)]
    lock: LockName,
    /// The condition of the lock: up to 128 bytes. Each lock has one without a name, too.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    condition: String,
    /// How long the lock lives without keep-alives: 1 s to 10 min. The command is asked to stop when a third of it is
    /// left.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    ttl: Duration,
    /// How long to wait for the lock and the signal together; forever when absent.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
    #[command(flatten)]
    on_request: OnRequest,
    /// The command to run while holding the lock, after `--`. Its variable HOLDFAST_FENCING_TOKEN contains the fencing
    /// token.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Flags of `holdfast signal`.
#[derive(Debug, Args)]
pub(crate) struct SignalArgs {
    #[command(flatten)]
    lock: LockName,
    /// The condition of the lock. Each lock has one without a name, too.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    condition: String,
    /// Wake all that await it, in order.
    #[arg(long)]
    all: bool,
    /// How long to wait for the lock; forever when absent. `0s` does not wait.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
}

/// Waits for a signal, and runs the command.
pub(crate) async fn wait_for(settings: &Settings, args: WaitForArgs) -> Result<ExitCode> {
    let WaitForArgs { lock, condition, ttl, wait, on_request, command } = args;
    let Some((program, arguments)) = command.split_first() else {
        crate::exit_misused("say which command to run, after `--`");
    };
    if wait == Some(Duration::ZERO) {
        crate::exit_misused("a signal takes time: --wait must be more than 0s");
    }
    let target = Target::Signalled { path: lock.path(), condition };
    let run = GuardedRun { target, ttl, wait, release_signal: on_request.release_signal };
    run_guarded(settings, &run, program, arguments).await
}

/// Acquires the lock, signals, and releases it.
pub(crate) async fn signal(settings: &Settings, args: SignalArgs) -> Result<ExitCode> {
    let session = settings.client.session(settings.namespace()?.as_str()).process_id(process_id());
    let session = session.metadata("command", "signal").open().await?;
    let signalled = match acquire(&session, &args).await {
        Ok(guard) => {
            let condition = session.condition(&args.condition);
            if args.all { guard.signal_all(&condition).await } else { guard.signal(&condition).await }
        }
        Err(why @ (Error::Refused(_) | Error::TimedOut(_))) => {
            session.close().await;
            return Ok(ExitCode::from(report_not_acquired(settings.format, "not locked", &why)));
        }
        Err(error) => Err(error),
    };
    // Closing releases the lock.
    session.close().await;
    let signalled = signalled?;
    let text = || match signalled {
        0 => "nobody awaits it".to_owned(),
        signalled => format!("woke {signalled}"),
    };
    settings.format.print(text, || json!({"signalled": signalled}))?;
    Ok(ExitCode::SUCCESS)
}

async fn acquire(session: &Session, args: &SignalArgs) -> Result<Guard, Error> {
    let lock = session.mutex(args.lock.path()).owned_by(user_at_host());
    match args.wait {
        None => lock.lock().await,
        Some(Duration::ZERO) => lock.try_lock().await,
        Some(wait) => lock.lock_timeout(wait).await,
    }
}
