//! Acquires that wait: if the caller cancels, its request leaves the queue, and an undelivered grant is released.

use std::time::Duration;

use holdfast_cluster::Application;
use holdfast_supervise::spawn_temporary;
use holdfast_types::{Acquire, AcquireOutcome, Cancel, Command, LocksCommand, Reply, Response};
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
    cancel: Cancel,
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
        let command = Command::Locks(LocksCommand::Cancel(self.cancel));
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
    pub(super) acquire: Acquire,
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
            let Self { key, acquire, .. } = self;
            let (reply, attempt) = match outcome {
                Ok((reply, attempt)) => (Ok(reply), attempt),
                Err(error) => (Err(error), 0),
            };
            let is_owed = attempt > 0 && reply.as_ref().is_ok_and(is_granted_or_enqueued);
            let rollback = is_owed.then(|| CompensatingCancel { router, key, cancel: cancel_of(acquire, attempt) });
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

fn cancel_of(acquire: Acquire, attempt: u64) -> Cancel {
    let Acquire { namespace, owner, request_id, claims, .. } = acquire;
    Cancel { namespace, owner, request_id, claims, attempt }
}
