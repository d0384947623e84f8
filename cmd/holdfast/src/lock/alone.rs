//! A lock that is taken for a time, without a command that keeps it.

use std::time::Duration;

use anyhow::{Result, bail};
use holdfast_client::protocol::refusal::Code;
use holdfast_client::protocol::{AcquireLockRequest, AcquireLockResponse, Mode};
use holdfast_client::{Error, Refusal, Standing};
use serde_json::json;
use tokio::time::Instant;

use super::held::signalled;
use super::waiting::Waiting;
use super::{LockArgs, not_locked};
use crate::calls::{call, call_within, may_pass};
use crate::names::{parts, process_id};
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;

/// One call of a wait; between two of them the place is kept.
const POLL: Duration = Duration::from_secs(2);
/// The longest wait that the service takes.
const LONGEST: Duration = Duration::from_secs(600);
/// How long a call may take beyond its wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(settings: &Settings, args: &LockArgs) -> Result<u8> {
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => format!("{}:{}", process_id(), &uuid::Uuid::new_v4().simple().to_string()[..8]),
    };
    let request = request(settings, args, &owner)?;
    let mut signals = Signals::listen()?;
    let answer = tokio::select! {
        answer = acquire(settings, args, request) => answer?,
        // A call that is dropped leaves the queue.
        signal = signals.next() => return Ok(signalled(signal)),
    };
    let path = args.lock.path();
    let Some(token) = answer.fencing_token.filter(|_| answer.success) else {
        let why = Error::Refused(Refusal::from(answer.reason.unwrap_or_default()));
        return Ok(not_locked(settings.format, why));
    };
    let lock = answer.lock.unwrap_or_default();
    settings.format.print(
        || {
            let ttl = humantime::format_duration(args.ttl);
            format!(
                "{path} is locked for {ttl} by {owner}\nfencing token: {token}\nunlock it with: holdfast unlock {} \
                --owner '{owner}'",
                show::as_arguments(&path)
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

/// Waits for the lock by one call after the other, and says where the wait stands.
async fn acquire(settings: &Settings, args: &LockArgs, request: AcquireLockRequest) -> Result<AcquireLockResponse> {
    let deadline = args.wait.map(|wait| Instant::now() + wait);
    let mut waiting = Waiting::new(settings.format, args.lock.path());
    loop {
        let left = deadline.map_or(LONGEST, |deadline| deadline.saturating_duration_since(Instant::now()));
        let wait_ms = u64::try_from(left.min(LONGEST).as_millis())?;
        // The last call is bounded by the wait itself, and then says that it ended.
        let poll_ms = (left > POLL).then_some(u64::try_from(POLL.as_millis())?);
        let asked = AcquireLockRequest { wait_ms, poll_ms, ..request.clone() };
        let within = left.min(POLL) + ANSWER_WITHIN;
        let acquire = async |request| settings.client.locks().acquire_lock(request).await;
        let answer = match call_within(asked, within, acquire).await {
            Ok(answer) => answer,
            Err(error) if is_worth_another(&error) && deadline.is_none_or(|at| Instant::now() < at) => {
                settings.format.note(format_args!("still trying: {error}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        let reason = answer.reason.clone().unwrap_or_default();
        if answer.success && wait_ms > 0 {
            // Granted while nobody listened, it may have begun long before: it counts from an extension.
            let extend = AcquireLockRequest { fencing_token: answer.fencing_token, ..request.clone() };
            let extended = call(extend, acquire).await?;
            if extended.success {
                return Ok(extended);
            }
            settings.format.note("the lock ran out before it was heard of; queueing again");
        } else if answer.success || reason.code() != Code::Queued || poll_ms.is_none() {
            return Ok(answer);
        } else {
            let queue_position = reason.queue_position;
            waiting.observe(&Standing { queue_position, blockers: Refusal::from(reason).blockers });
        }
    }
}

/// Whether the same call may be made again: it then finds what the first one did.
fn is_worth_another(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| may_pass(error) || error.code() == Some("DEADLINE_EXCEEDED"))
}
