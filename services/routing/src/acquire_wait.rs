//! Acquires that wait: if the caller cancels, its request leaves the queue, and an undelivered grant is released.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_cluster::Application;
use holdfast_supervise::{spawn_alongside, survive_panic};
use holdfast_types::{
    AccountId, Acquire, AcquireAtLeast, AcquireOutcome, AcquirePermits, AwaitCondition, Cancel, CancelAwait,
    CancelPermits, Command, ConditionCommand, LocksCommand, PermitCommand, Reply, Response, Rules, codec,
};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::router::Router;
use crate::{RetryPolicy, RouteError};

/// Timeout of a compensating cancel. After it, the shard expires the orphaned request itself.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// A grant that is not delivered yet. Dropping it releases the grant.
struct UndeliveredGrant {
    reply: Result<Reply, RouteError>,
    rollback: Option<CompensatingCancel>,
}

struct CompensatingCancel {
    router: Router,
    key: u32,
    /// The encoded acquire. Few calls need it, so it is decoded only then.
    command: Bytes,
    attempt: u64,
}

impl Drop for UndeliveredGrant {
    fn drop(&mut self) {
        if let Some(give_back) = self.rollback.take() {
            spawn_alongside("compensating_cancel", give_back.run());
        }
    }
}

impl CompensatingCancel {
    async fn run(self) {
        let Some(cancel) = cancel_of(&self.command, self.attempt) else { return };
        let command = Command::Locks(cancel);
        let deadline = Instant::now() + CANCEL_TIMEOUT;
        let sent = self.router.command(Application::Locks, self.key, &command, RetryPolicy::LaterTerm, deadline).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "compensating cancel failed");
        }
    }
}

/// An acquire that may wait.
pub(super) struct Wait {
    pub(super) key: u32,
    pub(super) account: AccountId,
    /// The encoded acquire: all that is kept of it while it waits.
    pub(super) command: Bytes,
    /// The lowest rules that include the command.
    pub(super) min_rules: Rules,
    pub(super) poll: Option<Duration>,
    pub(super) deadline: Instant,
    /// Cancelled once the request waits.
    pub(super) deferred: CancellationToken,
}

impl Wait {
    /// Returns a wait of an acquire, of locks or permits. The decoded acquire is dropped before the wait.
    pub(super) fn new(
        key: u32,
        account: AccountId,
        acquire: LocksCommand,
        poll: Option<Duration>,
        deadline: Instant,
        deferred: CancellationToken,
    ) -> Self {
        let command = Command::Locks(acquire);
        let min_rules = command.min_rules();
        Self { key, account, command: Bytes::from(codec::encode(&command)), min_rules, poll, deadline, deferred }
    }

    /// Waits for the outcome. Goes on if the caller leaves, until nothing is owed. Not an `async fn`, which would have
    /// room for the wait beside its box.
    pub(super) fn run(self, router: Router) -> impl Future<Output = Result<Reply, RouteError>> + use<> {
        let gone = CancellationToken::new();
        let waiting = survive_panic("acquire", self.outcome(router, gone.clone())).boxed();
        let waiting = WaitingCaller { waiting: Some(waiting), gone };
        waiting.map(|outcome| match outcome {
            Some(mut owed) => {
                // From here on the caller owns the grant.
                owed.rollback = None;
                owed.reply.clone()
            }
            None => Err(RouteError::OutcomeUnknown {
                shard: "of the lock".to_owned(),
                reason: "this process failed to handle the call".to_owned(),
            }),
        })
    }

    async fn outcome(self, router: Router, gone: CancellationToken) -> UndeliveredGrant {
        let hold = self.poll.unwrap_or_else(|| self.deadline.saturating_duration_since(Instant::now()));
        let outcome = router.acquire_and_wait(&self, hold, gone).await;
        let Self { key, command, .. } = self;
        let (reply, attempt) = match outcome {
            Ok((reply, attempt)) => (Ok(reply), attempt),
            Err(error) => (Err(error), 0),
        };
        let is_owed = attempt > 0 && reply.as_ref().is_ok_and(is_granted_or_enqueued);
        let rollback = is_owed.then(|| CompensatingCancel { router, key, command, attempt });
        UndeliveredGrant { reply, rollback }
    }
}

/// The wait of a caller that may leave.
struct WaitingCaller {
    /// `None` once it is done.
    waiting: Option<BoxFuture<'static, Option<UndeliveredGrant>>>,
    /// Cancelled once the caller has left.
    gone: CancellationToken,
}

impl Future for WaitingCaller {
    type Output = Option<UndeliveredGrant>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(waiting) = &mut self.waiting else { return Poll::Ready(None) };
        let done = ready!(waiting.poll_unpin(context));
        self.waiting = None;
        Poll::Ready(done)
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        let Some(waiting) = self.waiting.take().filter(|_| Handle::try_current().is_ok()) else { return };
        self.gone.cancel();
        // What it returns releases its grant when it is dropped. Thousands of callers may leave together: what is left
        // of their calls takes turns as these did.
        spawn_alongside("acquire", waiting);
    }
}

fn is_granted_or_enqueued(reply: &Reply) -> bool {
    match &reply.outcome {
        Ok(
            Response::Acquired { outcome, .. }
            | Response::PermitsAcquired { outcome, .. }
            | Response::Awaited { outcome, .. },
        ) => !matches!(outcome, AcquireOutcome::Refused(_)),
        _ => false,
    }
}

/// Returns the cancel of an attempt at an encoded acquire.
fn cancel_of(command: &[u8], attempt: u64) -> Option<LocksCommand> {
    match codec::decode(command) {
        Ok(Command::Locks(
            LocksCommand::Acquire(acquire) | LocksCommand::AcquireAtLeast(AcquireAtLeast { acquire, .. }),
        )) => {
            let Acquire { namespace, owner, request_id, claims, .. } = acquire;
            Some(LocksCommand::Cancel(Cancel { namespace, owner, request_id, claims, attempt }))
        }
        Ok(Command::Locks(LocksCommand::Permit(PermitCommand::Acquire(acquire)))) => {
            let AcquirePermits { namespace, path, owner, request_id, wanted, .. } = acquire;
            let (kind, attempts) = (wanted.kind(), vec![attempt]);
            let cancel = CancelPermits { namespace, kind, path, owner, request_id, attempts };
            Some(LocksCommand::Permit(PermitCommand::Cancel(cancel)))
        }
        Ok(Command::Locks(LocksCommand::Condition(ConditionCommand::Await(awaits)))) => {
            let AwaitCondition { namespace, path, owner, fencing_token, .. } = awaits;
            let cancel = CancelAwait { namespace, path, owner, fencing_token, attempts: vec![attempt] };
            Some(LocksCommand::Condition(ConditionCommand::Cancel(cancel)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Incarnation, Kind, Metadata, NamespaceRef, Owner, Path, Wait as WaitFor, Wanted};

    use super::*;

    #[test]
    fn what_is_given_back_of_permits_is_named_as_in_the_request() {
        let namespace = NamespaceRef { account: AccountId(1), name: "demo".into(), incarnation: Incarnation(2) };
        let acquire = AcquirePermits {
            namespace: namespace.clone(),
            path: Path::flat("s"),
            owner: Owner::Process("p".into()),
            request_id: "r".into(),
            wanted: Wanted::Permits { weight: 2, permits: None },
            priority: 0,
            ttl_ms: Some(1_000),
            transition_ms: 0,
            wait: WaitFor::For(60_000),
            metadata: Metadata::new(),
            fencing_token: None,
            attempt: 0,
            abandoned: Vec::new(),
            message: None,
        };
        let command = Command::Locks(LocksCommand::Permit(PermitCommand::Acquire(acquire)));
        let Some(LocksCommand::Permit(PermitCommand::Cancel(cancel))) = cancel_of(&codec::encode(&command), 7) else {
            panic!("not a cancel of permits")
        };
        assert_eq!((cancel.namespace, cancel.path, cancel.attempts), (namespace, Path::flat("s"), vec![7]));
        assert_eq!((cancel.owner, cancel.request_id.as_str()), (Owner::Process("p".into()), "r"));
        assert_eq!(cancel.kind, Kind::Semaphore);
    }
}
