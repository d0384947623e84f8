//! A lock that is held for as long as a command runs.

use std::ffi::{OsStr, OsString};
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Result, bail};
use holdfast_client::{EndReason, Error, Guard, RwLock, Session};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::command::Supervised;
use super::waiting::Waiting;
use super::{LockArgs, not_locked};
use crate::names::process_id;
use crate::settings::Settings;
use crate::signals::Signals;

/// How long one search for a gateway takes before it is said that there is none.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// It takes that long at least, however short the wait for the lock may be.
const OPEN_AT_LEAST: Duration = Duration::from_secs(1);
/// What shells add to the number of a signal.
const SIGNALLED: u8 = 128;

/// How the wait ended.
enum Waited {
    Locked(Session, Guard),
    NotLocked(String),
    Signalled(Signal),
}

pub(super) async fn run(settings: &Settings, args: &LockArgs, program: &OsStr, arguments: &[OsString]) -> Result<u8> {
    if args.owner.is_some() {
        bail!("--owner goes without a command only: a command's lock is its own");
    }
    let mut signals = Signals::listen()?;
    let deadline = args.wait.map(|wait| Instant::now() + wait);
    let (session, guard) = match wait(settings, args, program, deadline, &mut signals).await? {
        Waited::Locked(session, guard) => (session, guard),
        Waited::NotLocked(why) => return Ok(not_locked(settings.format, why)),
        Waited::Signalled(signal) => return Ok(signalled(signal)),
    };
    let command = Supervised::start(program, arguments, &guard, args.lock.path())?;
    let code = command.run(settings.format, &guard, args.ttl, &mut signals).await?;
    // Frees the lock in the same step, and gives up in time where no gateway answers. The signal that ended the command
    // may have been sent to both, and is not to end this too.
    session.close().await;
    drop(guard);
    Ok(code)
}

/// Waits for the lock, on one session after the other should one end.
async fn wait(
    settings: &Settings,
    args: &LockArgs,
    program: &OsStr,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<Waited> {
    loop {
        let opened = tokio::select! {
            opened = open(settings, args, program, deadline) => opened,
            signal = ending(signals) => return Ok(Waited::Signalled(signal)),
        };
        let session = match opened {
            Ok(session) => session,
            Err(Error::Unreachable(why)) => return Ok(Waited::NotLocked(format!("no gateway can be reached: {why}"))),
            Err(error) => return Err(error.into()),
        };
        let locked = tokio::select! {
            locked = lock(settings, args, program, &session, deadline) => locked,
            signal = ending(signals) => {
                // So that the place in the queue is free at once.
                leave(&session, signals).await;
                return Ok(Waited::Signalled(signal));
            }
        };
        match locked {
            Ok(guard) => return Ok(Waited::Locked(session, guard)),
            Err(Error::SessionEnded(EndReason::Unreachable | EndReason::Expired | EndReason::Reset)) => {
                settings.format.note("the place in the queue was lost; queueing again");
            }
            Err(error @ (Error::Refused(_) | Error::TimedOut(_))) => {
                leave(&session, signals).await;
                return Ok(Waited::NotLocked(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens a session, and looks for a gateway for as long as the lock may be waited for.
async fn open(
    settings: &Settings,
    args: &LockArgs,
    program: &OsStr,
    deadline: Option<Instant>,
) -> Result<Session, Error> {
    let namespace = settings.namespace().map_err(|error| Error::Invalid(error.to_string()))?;
    let mut told = false;
    loop {
        let left = deadline.map_or(OPEN_WITHIN, |deadline| deadline.saturating_duration_since(Instant::now()));
        let session = settings.client.session(namespace.as_str()).process_id(process_id()).ttl(args.ttl);
        let session = session.metadata("command", name_of(program));
        let session = session.open_within(left.clamp(OPEN_AT_LEAST, OPEN_WITHIN));
        match session.open().await {
            Err(Error::Unreachable(why)) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                if !std::mem::replace(&mut told, true) {
                    settings.format.note(format_args!("no gateway can be reached, still trying: {why}"));
                }
            }
            result => return result,
        }
    }
}

async fn lock(
    settings: &Settings,
    args: &LockArgs,
    program: &OsStr,
    session: &Session,
    deadline: Option<Instant>,
) -> Result<Guard, Error> {
    let lock = session.rw_lock(args.lock.path()).owned_by(name_of(program));
    if args.wait == Some(Duration::ZERO) {
        return if args.read { lock.try_read().await } else { lock.try_write().await };
    }
    let mut waiting = Waiting::new(settings.format, args.lock.path());
    let locked = observed(&lock, args.read, &mut waiting);
    match deadline {
        None => locked.await,
        Some(deadline) => {
            let limit = args.wait.unwrap_or_default();
            timeout_at(deadline, locked).await.unwrap_or(Err(Error::TimedOut(limit)))
        }
    }
}

async fn observed(lock: &RwLock, read: bool, waiting: &mut Waiting) -> Result<Guard, Error> {
    if read {
        lock.read_observed(|standing| waiting.observe(&standing)).await
    } else {
        lock.write_observed(|standing| waiting.observe(&standing)).await
    }
}

/// Closes the session, which gives up in time where no gateway answers, or with the next signal.
async fn leave(session: &Session, signals: &mut Signals) {
    tokio::select! {
        _ = session.close() => {}
        _ = ending(signals) => {}
    }
}

/// The next signal that ends a wait.
async fn ending(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if signal != Signal::USR1 && signal != Signal::USR2 {
            return signal;
        }
    }
}

pub(super) fn signalled(signal: Signal) -> u8 {
    SIGNALLED.saturating_add(u8::try_from(signal.as_raw()).unwrap_or_default())
}

/// The name of a program, short enough to be shown.
fn name_of(program: &OsStr) -> String {
    let name = FilePath::new(program).file_name().unwrap_or(program).to_string_lossy();
    name.chars().take(32).collect()
}

/// A moment, for ever without one.
pub(super) async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
