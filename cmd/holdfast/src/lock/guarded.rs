//! A lock, permits or members of a pool that are held while a command runs.

use std::ffi::{OsStr, OsString};
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Result, bail};
use holdfast_client::{EndReason, Error, Guard, Hold, Permit, Pool, PoolLease, RwLock, Session};
use rustix::process::Signal;
use tokio::time::{Instant, timeout_at};

use super::command::SupervisedChild;
use super::wait_progress::WaitProgress;
use super::{GuardedRun, Target, report_not_acquired};
use crate::names::process_id;
use crate::settings::Settings;
use crate::signals::Signals;

/// Time to search for a gateway before the program reports that none responds.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum of that time, however short the wait for the lock.
const MIN_OPEN_TIMEOUT: Duration = Duration::from_secs(1);
/// The offset that shells add to a signal number.
const SIGNAL_EXIT_BASE: u8 = 128;

/// How the wait ended.
enum WaitResult {
    Acquired(Session, HeldGuard),
    NotAcquired(Error),
    Signalled(Signal),
}

/// What the command runs under.
enum HeldGuard {
    Lock(Guard),
    Permits(Permit),
    Members(PoolLease),
}

impl HeldGuard {
    fn hold(&self) -> &Hold {
        match self {
            Self::Lock(guard) => guard,
            Self::Permits(permit) => permit,
            Self::Members(lease) => lease,
        }
    }

    /// Returns the members of a pool.
    fn members(&self) -> Option<&[String]> {
        if let Self::Members(lease) = self { Some(lease.members()) } else { None }
    }
}

pub(super) async fn run(settings: &Settings, args: &GuardedRun, program: &OsStr, arguments: &[OsString]) -> Result<u8> {
    let mut signals = Signals::listen()?;
    let deadline = args.wait.map(|wait| Instant::now() + wait);
    let (session, guard) = match wait(settings, args, program, deadline, &mut signals).await? {
        WaitResult::Acquired(session, guard) => (session, guard),
        WaitResult::NotAcquired(why) => {
            let what = match args.target {
                Target::Lock { .. } => "not locked",
                Target::Signalled { .. } => "not signalled",
                Target::Permits { .. } => "no permits",
                Target::Members { .. } => "no members",
            };
            return Ok(report_not_acquired(settings.format, what, &why));
        }
        WaitResult::Signalled(signal) => return Ok(signal_exit_code(signal)),
    };
    if let Some(member) = guard.members().unwrap_or_default().iter().find(|member| !is_line(member)) {
        close_session(&session, &mut signals).await;
        bail!("the name of the member {member:?} has a line break, and HOLDFAST_MEMBERS has one member a line");
    }
    let command = SupervisedChild::start(program, arguments, (guard.hold(), guard.members()), &args.target)?;
    let code = command.run(settings.format, guard.hold(), args, &mut signals).await?;
    // Closing releases the lock in the same step, and ends in time if no gateway responds. The signal that ended the
    // command may have reached both processes, and must not interrupt this.
    session.close().await;
    drop(guard);
    Ok(code)
}

/// Returns whether a text is one line of a variable in the environment.
pub(crate) fn is_line(text: &str) -> bool {
    !text.contains(['\n', '\r', '\0'])
}

/// Waits for what the command needs; opens another session if one ends.
async fn wait(
    settings: &Settings,
    args: &GuardedRun,
    program: &OsStr,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<WaitResult> {
    loop {
        let opened = tokio::select! {
            opened = open(settings, args, program, deadline) => opened,
            signal = next_terminating_signal(signals) => return Ok(WaitResult::Signalled(signal)),
        };
        let session = match opened {
            Ok(session) => session,
            Err(error @ Error::Unreachable(_)) => return Ok(WaitResult::NotAcquired(error)),
            Err(error) => return Err(error.into()),
        };
        let locked = tokio::select! {
            locked = acquire(settings, args, program, &session, deadline) => locked,
            signal = next_terminating_signal(signals) => {
                // So that the request leaves the queue at once.
                close_session(&session, signals).await;
                return Ok(WaitResult::Signalled(signal));
            }
        };
        match locked {
            Ok(guard) => return Ok(WaitResult::Acquired(session, guard)),
            Err(Error::SessionEnded(EndReason::Unreachable | EndReason::Expired | EndReason::Reset)) => {
                settings.format.info("the place in the queue was lost; queueing again");
            }
            Err(error @ (Error::Refused(_) | Error::TimedOut(_))) => {
                close_session(&session, signals).await;
                return Ok(WaitResult::NotAcquired(error));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens a session; searches for a gateway for as long as the wait for the lock allows.
async fn open(
    settings: &Settings,
    args: &GuardedRun,
    program: &OsStr,
    deadline: Option<Instant>,
) -> Result<Session, Error> {
    let namespace = settings.namespace().map_err(|error| Error::Invalid(error.to_string()))?;
    let mut told = false;
    loop {
        let left = deadline.map_or(OPEN_TIMEOUT, |deadline| deadline.saturating_duration_since(Instant::now()));
        let session = settings.client.session(namespace.as_str()).process_id(process_id()).ttl(args.ttl);
        let session = session.metadata("command", program_name(program));
        let session = session.open_within(left.clamp(MIN_OPEN_TIMEOUT, OPEN_TIMEOUT));
        match session.open().await {
            Err(Error::Unreachable(why)) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                if !std::mem::replace(&mut told, true) {
                    settings.format.info(format_args!("no gateway can be reached, still trying: {why}"));
                }
            }
            result => return result,
        }
    }
}

async fn acquire(
    settings: &Settings,
    args: &GuardedRun,
    program: &OsStr,
    session: &Session,
    deadline: Option<Instant>,
) -> Result<HeldGuard, Error> {
    let mut waiting = WaitProgress::new(settings.format, args.target.path().clone());
    let is_try = args.wait == Some(Duration::ZERO);
    let acquired = async {
        match &args.target {
            Target::Lock { path, read, at_least } => {
                let lock = session.rw_lock(path).owned_by(program_name(program)).at_least(*at_least);
                let guard = match (is_try, *read) {
                    (true, true) => lock.try_read().await,
                    (true, false) => lock.try_write().await,
                    (false, _) => lock_observed(&lock, *read, &mut waiting).await,
                };
                guard.map(HeldGuard::Lock)
            }
            Target::Signalled { path, condition } => {
                let lock = session.mutex(path).owned_by(program_name(program));
                let guard = lock.lock_observed(|standing| waiting.observe(&standing)).await?;
                settings.format.info(format_args!("awaiting a signal at {path}"));
                guard.wait(&session.condition(condition)).await.map(HeldGuard::Lock)
            }
            Target::Permits { path, weight, permits, priority } => {
                let semaphore = session.semaphore(path).owned_by(program_name(program)).priority(*priority);
                let semaphore = permits.iter().fold(semaphore, |semaphore, permits| semaphore.permits(*permits));
                let permit = if is_try {
                    semaphore.try_acquire(*weight).await
                } else {
                    semaphore.acquire_observed(*weight, |standing| waiting.observe(&standing)).await
                };
                permit.map(HeldGuard::Permits)
            }
            Target::Members { path, count, member, priority } => {
                let pool = session.pool(path).owned_by(program_name(program)).priority(*priority);
                take_members(&pool, (*count, member.as_deref()), is_try, &mut waiting).await.map(HeldGuard::Members)
            }
        }
    };
    match deadline.filter(|_| !is_try) {
        None => acquired.await,
        Some(deadline) => {
            let limit = args.wait.unwrap_or_default();
            timeout_at(deadline, acquired).await.unwrap_or(Err(Error::TimedOut(limit)))
        }
    }
}

async fn take_members(
    pool: &Pool,
    wanted: (u64, Option<&str>),
    is_try: bool,
    waiting: &mut WaitProgress,
) -> Result<PoolLease, Error> {
    match (wanted, is_try) {
        ((_, Some(member)), true) => pool.try_take_member(member).await,
        ((_, Some(member)), false) => pool.take_member_observed(member, |standing| waiting.observe(&standing)).await,
        ((count, None), true) => pool.try_take(count).await,
        ((count, None), false) => pool.take_observed(count, |standing| waiting.observe(&standing)).await,
    }
}

async fn lock_observed(lock: &RwLock, read: bool, waiting: &mut WaitProgress) -> Result<Guard, Error> {
    if read {
        lock.read_observed(|standing| waiting.observe(&standing)).await
    } else {
        lock.write_observed(|standing| waiting.observe(&standing)).await
    }
}

/// Closes the session; ends early if no gateway responds, or at the next signal.
async fn close_session(session: &Session, signals: &mut Signals) {
    tokio::select! {
        _ = session.close() => {}
        _ = next_terminating_signal(signals) => {}
    }
}

/// Returns the next signal that ends a wait.
pub(crate) async fn next_terminating_signal(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if signal != Signal::USR1 && signal != Signal::USR2 {
            return signal;
        }
    }
}

/// Returns the exit status of a program that a signal ended.
pub(crate) fn signal_exit_code(signal: Signal) -> u8 {
    SIGNAL_EXIT_BASE.saturating_add(u8::try_from(signal.as_raw()).unwrap_or_default())
}

/// Returns the name of a program, shortened for display.
fn program_name(program: &OsStr) -> String {
    let name = FilePath::new(program).file_name().unwrap_or(program).to_string_lossy();
    name.chars().take(32).collect()
}
