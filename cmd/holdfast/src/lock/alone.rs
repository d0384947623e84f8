//! A lock that is taken for a time, without a command that keeps it.

use std::time::Duration;

use anyhow::{Result, bail};
use holdfast_client::protocol::refusal::Code;
use holdfast_client::protocol::{AcquireLockRequest, AcquireLockResponse, Mode, ReleaseLockRequest};
use holdfast_client::{Error, Refusal, Standing};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::held::{ending, signalled};
use super::waiting::Waiting;
use super::{LockArgs, not_locked};
use crate::calls::{call, call_once, may_pass};
use crate::names::{parts, process_id};
use crate::output::Format;
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;

/// The first call of a wait, after which it is said who is in the way.
const FIRST_POLL: Duration = Duration::from_millis(50);
/// Any other one; between two of them the place is kept.
const POLL: Duration = Duration::from_secs(2);
/// The longest wait that the service takes.
const LONGEST: Duration = Duration::from_secs(600);
/// How long a call may take beyond its wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// After a call that was not answered, before the next one.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn run(settings: &Settings, args: &LockArgs) -> Result<u8> {
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => format!("{}:{}", process_id(), &uuid::Uuid::new_v4().simple().to_string()[..8]),
    };
    let mut signals = Signals::listen()?;
    let mut wait = Wait { settings, args, request: request(settings, args, &owner)?, is_queued: false };
    let ended = tokio::select! {
        ended = wait.run() => ended?,
        signal = ending(&mut signals) => {
            tokio::select! {
                _ = wait.leave() => {}
                _ = ending(&mut signals) => {}
            }
            return Ok(signalled(signal));
        }
    };
    let (token, answer) = match ended {
        Ended::Locked(token, answer) => (token, answer),
        Ended::NotLocked(why, answer) => {
            if let Err(error) = wait.leave().await {
                settings.format.note(format_args!("the place in the queue is left to run out: {error}"));
            }
            if let (Format::Json, Some(answer)) = (settings.format, answer) {
                settings.format.print(String::new, || show::json::refused(&answer))?;
            }
            return Ok(not_locked(settings.format, &why));
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
                show::as_arguments(&path),
                show::quoted(&owner)
            )
        },
        || json!({"success": true, "fencing_token": token, "owner": owner, "lock": show::json::lock(&lock)}),
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
        ..Default::default()
    })
}

/// One call after the other, until the lock is got or will not be.
struct Wait<'a> {
    settings: &'a Settings,
    args: &'a LockArgs,
    request: AcquireLockRequest,
    /// Whether the service keeps a place in the queue, also between two calls.
    is_queued: bool,
}

enum Ended {
    Locked(u64, AcquireLockResponse),
    NotLocked(Error, Option<AcquireLockResponse>),
}

impl Wait<'_> {
    /// Waits for the lock, and says where the wait stands.
    async fn run(&mut self) -> Result<Ended> {
        let deadline = self.args.wait.map(|wait| Instant::now() + wait);
        let mut waiting = Waiting::new(self.settings.format, self.args.lock.path());
        let (mut complained, mut poll_for) = (false, FIRST_POLL);
        loop {
            let left = deadline.map_or(LONGEST, |deadline| deadline.saturating_duration_since(Instant::now()));
            // The last call is bounded by the wait itself, and then says that it ended.
            let poll = (left > poll_for).then_some(poll_for);
            let answer = match self.ask(left, poll).await {
                Ok(answer) => answer,
                // The same call may be made again: it then finds what the first one did.
                Err(error) if may_pass(&error) || error.code() == Some("DEADLINE_EXCEEDED") => {
                    if left.is_zero() {
                        return Ok(Ended::NotLocked(error, None));
                    }
                    if !std::mem::replace(&mut complained, true) {
                        self.settings.format.note(format_args!("still trying: {error}"));
                    }
                    sleep(PAUSE.min(left)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            poll_for = POLL;
            let reason = answer.reason.clone().unwrap_or_default();
            self.is_queued = !answer.success && reason.code() == Code::Queued;
            match answer.fencing_token.filter(|_| answer.success) {
                Some(token) if left.is_zero() => return Ok(Ended::Locked(token, answer)),
                // Granted while nobody listened, it may have begun long before: it counts from an extension.
                Some(token) => match self.extended(token).await? {
                    Some(answer) => return Ok(Ended::Locked(token, answer)),
                    None => self.settings.format.note("the lock ran out before it was heard of; queueing again"),
                },
                None if self.is_queued && poll.is_some() => {
                    let queue_position = reason.queue_position;
                    waiting.observe(&Standing { queue_position, blockers: Refusal::from(reason).blockers });
                }
                None => return Ok(Ended::NotLocked(Error::Refused(Refusal::from(reason)), Some(answer))),
            }
        }
    }

    /// One call, which waits for so long, or is answered earlier and keeps its place.
    async fn ask(&self, wait: Duration, poll: Option<Duration>) -> Result<AcquireLockResponse, Error> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let asked = AcquireLockRequest { wait_ms: ms(wait), poll_ms: poll.map(ms), ..self.request.clone() };
        let within = poll.unwrap_or(wait) + ANSWER_WITHIN;
        call_once(asked, within, async |request| self.settings.client.locks().acquire_lock(request).await).await
    }

    async fn extended(&self, token: u64) -> Result<Option<AcquireLockResponse>> {
        let extend = AcquireLockRequest { fencing_token: Some(token), ..self.request.clone() };
        let answer = call(extend, async |request| self.settings.client.locks().acquire_lock(request).await).await?;
        Ok(Some(answer).filter(|answer| answer.success))
    }

    /// Gives up. A call under way that is dropped leaves the queue; the place that is kept between two calls ends with
    /// one more call that waits for a moment only.
    async fn leave(&self) -> Result<()> {
        if !self.is_queued {
            return Ok(());
        }
        let answer = self.ask(Duration::from_millis(1), None).await?;
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
