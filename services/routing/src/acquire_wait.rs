//! Acquires that wait: if the caller cancels, its request leaves the queue, and an undelivered grant is released.

use std::time::Duration;

use bytes::Bytes;
use holdfast_cluster::Application;
use holdfast_supervise::spawn_temporary;
use holdfast_types::{
    AccountId, Acquire, AcquireOutcome, Cancel, Command, LocksCommand, Reply, Response, Rules, codec,
};
use tokio::sync::oneshot;
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
            spawn_temporary("give back", give_back.run());
        }
    }
}

impl CompensatingCancel {
    async fn run(self) {
        let Some(cancel) = cancel_of(&self.command, self.attempt) else { return };
        let command = Command::Locks(LocksCommand::Cancel(cancel));
        let deadline = Instant::now() + CANCEL_TIMEOUT;
        let sent = self.router.command(Application::Locks, self.key, &command, RetryPolicy::LaterTerm, deadline).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "what nobody waits for any more could not be given back");
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
    /// Runs as a separate task, so that it completes even if the caller cancels.
    pub(super) async fn run(self, router: Router) -> Result<Reply, RouteError> {
        let gone = CancellationToken::new();
        let leaves = gone.clone().drop_guard();
        let (hand_over, handed) = oneshot::channel();
        spawn_temporary("acquire", async move {
            let hold = self.poll.unwrap_or_else(|| self.deadline.saturating_duration_since(Instant::now()));
            let outcome = router.acquire_and_wait(&self, hold, gone).await;
            let Self { key, command, .. } = self;
            let (reply, attempt) = match outcome {
                Ok((reply, attempt)) => (Ok(reply), attempt),
                Err(error) => (Err(error), 0),
            };
            let is_owed = attempt > 0 && reply.as_ref().is_ok_and(is_granted_or_enqueued);
            let rollback = is_owed.then(|| CompensatingCancel { router, key, command, attempt });
            // A caller that has cancelled drops the value, which releases the grant.
            drop(hand_over.send(UndeliveredGrant { reply, rollback }));
        });
        let owed = handed.await;
        // From here on the caller owns the grant.
        leaves.disarm();
        match owed {
            Ok(mut owed) => {
                owed.rollback = None;
                owed.reply.clone()
            }
            Err(_) => Err(RouteError::OutcomeUnknown {
                shard: "of the lock".to_owned(),
                reason: "this process is stopping".to_owned(),
            }),
        }
    }
}

fn is_granted_or_enqueued(reply: &Reply) -> bool {
    let Ok(Response::Acquired { outcome, .. }) = &reply.outcome else { return false };
    !matches!(outcome, AcquireOutcome::Refused(_))
}

/// Returns the cancel of an attempt at an encoded acquire.
fn cancel_of(command: &[u8], attempt: u64) -> Option<Cancel> {
    let Ok(Command::Locks(LocksCommand::Acquire(acquire))) = codec::decode(command) else { return None };
    let Acquire { namespace, owner, request_id, claims, .. } = acquire;
    Some(Cancel { namespace, owner, request_id, claims, attempt })
}
