//! A lock that is acquired for a time, without a command that keeps it alive.

use std::time::Duration;

use anyhow::{Result, bail};
use holdfast_client::protocol::refusal::Code;
use holdfast_client::protocol::{AcquireLockRequest, AcquireLockResponse, Mode, ReleaseLockRequest};
use holdfast_client::{Error, Refusal, WaitStatus};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::guarded::{next_terminating_signal, signal_exit_code};
use super::wait_progress::WaitProgress;
use super::{LockArgs, report_not_locked};
use crate::calls::{call, call_once, is_transient};
use crate::names::{parts, process_id};
use crate::output::Format;
use crate::render;
use crate::settings::Settings;
use crate::signals::Signals;

/// Duration of the first poll of a wait, after which the blockers are printed.
const FIRST_LONG_POLL: Duration = Duration::from_millis(50);
/// Duration of any later poll; the request stays queued between two polls.
const LONG_POLL: Duration = Duration::from_secs(2);
/// The longest wait that the service accepts.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// How long a call may take beyond its wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the next call after one without a response.
const RETRY_DELAY: Duration = Duration::from_millis(500);

pub(super) async fn run(settings: &Settings, args: &LockArgs) -> Result<u8> {
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => format!("{}:{}", process_id(), &uuid::Uuid::new_v4().simple().to_string()[..8]),
    };
    let mut signals = Signals::listen()?;
    let mut wait = Wait { settings, args, request: request(settings, args, &owner)?, is_queued: false };
    let ended = tokio::select! {
        ended = wait.run() => ended?,
        signal = next_terminating_signal(&mut signals) => {
            tokio::select! {
                _ = wait.cancel() => {}
                _ = next_terminating_signal(&mut signals) => {}
            }
            return Ok(signal_exit_code(signal));
        }
    };
    let (token, answer) = match ended {
        AcquireResult::Locked(token, answer) => (token, answer),
        AcquireResult::NotLocked(why, answer) => {
            if let Err(error) = wait.cancel().await {
                settings.format.info(format_args!("the request stays queued until it times out: {error}"));
            }
            if let (Format::Json, Some(answer)) = (settings.format, answer) {
                settings.format.print(String::new, || render::json::refused(&answer))?;
            }
            return Ok(report_not_locked(settings.format, &why));
        }
    };
    let path = args.lock.path();
    let lock = answer.lock.unwrap_or_default();
    settings.format.print(
        || {
            let ttl = humantime::format_duration(args.ttl);
            format!(
                "{path} is locked for {ttl} by {owner}\nfencing token: {token}\nunlock it with: holdfast unlock {} \
                --owner {}",
                render::as_arguments(&path),
                render::quoted(&owner)
            )
        },
        || json!({"success": true, "fencing_token": token, "owner": owner, "lock": render::json::lock(&lock)}),
    )?;
    Ok(0)
}

fn request(settings: &Settings, args: &LockArgs, owner: &str) -> Result<AcquireLockRequest> {
    let ttl_ms = u64::try_from(args.ttl.as_millis())?;
    if ttl_ms == 0 {
        bail!("--ttl: a lock that is taken for a time needs one of at least 100 ms");
    }
    let (path, whole_namespace) = parts(&args.lock.path());
    let mode = if args.read { Mode::Read } else { Mode::Write };
    Ok(AcquireLockRequest {
        namespace: settings.namespace()?,
        path,
        whole_namespace,
        process_id: Some(owner.to_owned()),
        mode: mode.into(),
        ttl_ms: Some(ttl_ms),
        at_least_ms: u64::try_from(args.at_least.as_millis())?,
        ..Default::default()
    })
}

/// Repeats the call until the lock is granted or refused.
struct Wait<'a> {
    settings: &'a Settings,
    args: &'a LockArgs,
    request: AcquireLockRequest,
    /// Whether the request is queued, also between two calls.
    is_queued: bool,
}

enum AcquireResult {
    Locked(u64, AcquireLockResponse),
    NotLocked(Error, Option<AcquireLockResponse>),
}

impl Wait<'_> {
    /// Waits for the lock, and reports the progress of the wait.
    async fn run(&mut self) -> Result<AcquireResult> {
        let deadline = self.args.wait.map(|wait| Instant::now() + wait);
        let mut waiting = WaitProgress::new(self.settings.format, self.args.lock.path());
        let (mut complained, mut poll_for) = (false, FIRST_LONG_POLL);
        loop {
            let left = deadline.map_or(MAX_WAIT, |deadline| deadline.saturating_duration_since(Instant::now()));
            // The last call is limited by the wait itself, and reports its end.
            let poll = (left > poll_for).then_some(poll_for);
            let answer = match self.try_acquire(left, poll).await {
                Ok(answer) => answer,
                // The same call may be repeated: it then finds the effect of the first one.
                Err(error) if is_transient(&error) || error.code() == Some("DEADLINE_EXCEEDED") => {
                    if left.is_zero() {
                        return Ok(AcquireResult::NotLocked(error, None));
                    }
                    if !std::mem::replace(&mut complained, true) {
                        self.settings.format.info(format_args!("still trying: {error}"));
                    }
                    sleep(RETRY_DELAY.min(left)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            poll_for = LONG_POLL;
            let reason = answer.reason.clone().unwrap_or_default();
            self.is_queued = !answer.success && reason.code() == Code::Queued;
            match answer.fencing_token.filter(|_| answer.success) {
                Some(token) if left.is_zero() => return Ok(AcquireResult::Locked(token, answer)),
                // A grant without a listening call may have started long before: its time counts from an extension.
                Some(token) => match self.extend(token).await? {
                    Some(answer) => return Ok(AcquireResult::Locked(token, answer)),
                    None => self.settings.format.info("the lock ran out before it was heard of; queueing again"),
                },
                None if self.is_queued && poll.is_some() => {
                    let queue_position = reason.queue_position;
                    let (blockers, holders) = (Refusal::from(reason).blockers, Vec::new());
                    waiting.observe(&WaitStatus { queue_position, blockers, holders });
                }
                None => return Ok(AcquireResult::NotLocked(Error::Refused(Refusal::from(reason)), Some(answer))),
            }
        }
    }

    /// Makes one call. It waits for `wait`, or returns after `poll` while the request stays queued.
    async fn try_acquire(&self, wait: Duration, poll: Option<Duration>) -> Result<AcquireLockResponse, Error> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let asked = AcquireLockRequest { wait_ms: ms(wait), poll_ms: poll.map(ms), ..self.request.clone() };
        let within = poll.unwrap_or(wait) + ANSWER_TIMEOUT;
        call_once(asked, within, async |request| self.settings.client.locks().acquire_lock(request).await).await
    }

    async fn extend(&self, token: u64) -> Result<Option<AcquireLockResponse>> {
        let extend = AcquireLockRequest { fencing_token: Some(token), ..self.request.clone() };
        let answer = call(extend, async |request| self.settings.client.locks().acquire_lock(request).await).await?;
        Ok(Some(answer).filter(|answer| answer.success))
    }

    /// Cancels the wait. A dropped call in flight leaves the queue; a request queued between two calls ends with one
    /// more call with a short wait.
    async fn cancel(&self) -> Result<()> {
        if !self.is_queued {
            return Ok(());
        }
        let answer = self.try_acquire(Duration::from_millis(1), None).await?;
        if !answer.success {
            return Ok(());
        }
        let AcquireLockRequest { namespace, path, whole_namespace, process_id, .. } = self.request.clone();
        let fencing_token = answer.fencing_token;
        let release =
            ReleaseLockRequest { namespace, path, whole_namespace, process_id, fencing_token, ..Default::default() };
        call(release, async |request| self.settings.client.locks().release_lock(request).await).await?;
        Ok(())
    }
}
