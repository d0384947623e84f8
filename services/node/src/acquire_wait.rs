//! Acquires that may wait, of locks or of permits: the reply is deferred until the wait ends.

use bytes::Bytes;
use holdfast_core::limit::CALLERS_OF_WAIT;
use holdfast_core::{AcquireOutcome, Command, CommandError, Enqueued, Reply, WaitId, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_rpc::ReplyHandle;
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use crate::admission;
use crate::call_handler::{not_leader, rejection};
use crate::leader::{Attachment, RECONNECT_GRACE, WaitNotice, WaitingCall, outcome_of};
use crate::replica::ShardReplica;

/// How long the request stays queued after the caller's poll ends.
const POLL_GRACE: Duration = Duration::from_secs(10);

/// Delay before the cancel of a grant is repeated.
const CANCEL_RETRY_DELAY: Duration = Duration::from_millis(500);

/// When a call that newer ones displaced may come again.
const DISPLACED_RETRY_MS: u64 = 1_000;

/// One acquire and its caller.
pub(crate) struct AcquireWait<'a> {
    pub(crate) shard: &'a ShardReplica,
    pub(crate) term: u64,
    pub(crate) caller: &'a ReplyHandle,
    /// When the caller's poll ends.
    pub(crate) poll_deadline: Instant,
    pub(crate) deadline: Instant,
}

/// The result of proposing an acquire.
enum Proposed {
    Done(Option<(Outcome, u64)>),
    /// It waits in the queue.
    Waits(Box<WaitingCall>, Box<Enqueued>),
}

/// Why the wait ended.
enum WaitEnd {
    Resolved(Bytes),
    Displaced,
    LeadershipLost,
    PollEnded,
    Cancelled,
    Disconnected,
}

impl Proposed {
    fn done(outcome: Outcome, attempt: u64) -> Self {
        Self::Done(Some((outcome, attempt)))
    }
}

impl AcquireWait<'_> {
    /// Returns the outcome and the attempt number, or `None` if the caller has disconnected.
    pub(crate) async fn acquire(&self, acquire: Box<WaitingCall>) -> Option<(Outcome, u64)> {
        // Boxed, so that a request that waits for minutes has no room for what comes before.
        match Box::pin(self.propose(acquire)).await {
            Proposed::Done(outcome) => outcome,
            Proposed::Waits(acquire, enqueued) => {
                let attempt = acquire.attempt();
                self.wait(&acquire, &enqueued).await.map(|outcome| (outcome, attempt))
            }
        }
    }

    async fn propose(&self, acquire: Box<WaitingCall>) -> Proposed {
        let machine = &self.shard.machine;
        let command = acquire.into_command();
        if let Err(refusal) = machine.check_capacity(self.term, &command) {
            return Proposed::done(Outcome::Reply(admission::encode_reply(machine, Err(refusal))), 0);
        }
        let Some(acquire) = WaitingCall::of_command(command) else { return Proposed::Done(None) };
        let begun = machine.with_leader_state(self.term, |core, table| table.begin_attempt(core, acquire));
        let (acquire, command) = match begun {
            None => return Proposed::done(not_leader(self.shard), 0),
            Some(None) => {
                let reason = "this leader has no more numbers for attempts";
                return Proposed::done(Outcome::NotProposed(reason.into()), 0);
            }
            Some(Some(begun)) => begun,
        };
        let attempt = acquire.attempt();
        let bytes = Bytes::from(codec::encode(&Command::Locks(command)));
        let reply = match self.shard.propose(self.term, bytes, self.deadline).await {
            Ok(reply) => reply,
            Err(error) => return Proposed::done(rejection(error), 0),
        };
        let outcome = match codec::decode::<Reply>(&reply) {
            Ok(decoded) => outcome_of(&decoded).cloned(),
            Err(error) => return Proposed::done(Outcome::Unknown(format!("the reply can't be read: {error}")), 0),
        };
        match outcome {
            Some(AcquireOutcome::Enqueued(enqueued)) => Proposed::Waits(Box::new(acquire), enqueued),
            outcome => {
                let is_granted = matches!(outcome, Some(AcquireOutcome::Granted { .. }));
                if self.caller.control.cancelled.is_cancelled() && is_granted {
                    self.cancel_grant(&acquire, attempt).await;
                }
                Proposed::done(Outcome::Reply(reply), attempt)
            }
        }
    }

    async fn wait(&self, acquire: &WaitingCall, enqueued: &Enqueued) -> Option<Outcome> {
        let wait = enqueued.wait;
        let machine = &self.shard.machine;
        let resolved =
            match machine.with_leader_state(self.term, |_, table| table.attach(wait, acquire.attempt())).flatten() {
                Some(Attachment::Resolved(reply)) => return self.deliver(acquire, wait, reply),
                // A former leader resolved the wait, or another replica leads now: the caller retries. It is notified first
                // that the request is queued, so that it doesn't assume the request was never proposed if no new leader is
                // elected in time.
                None => {
                    self.caller.defer().await;
                    return Some(not_leader(self.shard));
                }
                Some(Attachment::Pending(resolved)) => resolved,
            };
        self.caller.defer().await;
        match self.wait_end(resolved).await {
            WaitEnd::Resolved(reply) => self.deliver(acquire, wait, reply),
            // The request stays queued for the newer calls.
            WaitEnd::Displaced => Some(Outcome::Reply(admission::encode_reply(machine, Err(displaced())))),
            WaitEnd::LeadershipLost => Some(not_leader(self.shard)),
            WaitEnd::PollEnded => {
                machine
                    .with_leader_state(self.term, |_, table| table.waits.detach(wait, acquire.attempt(), POLL_GRACE));
                Some(self.current_position(acquire, enqueued))
            }
            WaitEnd::Cancelled => {
                self.cancel(acquire, wait).await;
                Some(Outcome::NotProposed("the caller gave up".into()))
            }
            WaitEnd::Disconnected => {
                machine.with_leader_state(self.term, |_, table| {
                    table.waits.detach(wait, acquire.attempt(), RECONNECT_GRACE)
                });
                None
            }
        }
    }

    async fn wait_end(&self, told: oneshot::Receiver<WaitNotice>) -> WaitEnd {
        tokio::select! {
            biased;
            notice = told => match notice {
                Ok(WaitNotice::Resolved(reply)) => WaitEnd::Resolved(reply),
                Ok(WaitNotice::Displaced) => WaitEnd::Displaced,
                Err(_) => WaitEnd::LeadershipLost,
            },
            () = self.caller.control.cancelled.cancelled() => WaitEnd::Cancelled,
            () = self.caller.disconnected.cancelled() => WaitEnd::Disconnected,
            () = sleep_until(self.poll_deadline) => WaitEnd::PollEnded,
        }
    }

    /// Returns the current position of the request. If the request was resolved meanwhile, the caller repeats the
    /// acquire.
    fn current_position(&self, acquire: &WaitingCall, enqueued: &Enqueued) -> Outcome {
        let reply = self.shard.machine.with_leader_state(self.term, |core, table| {
            let query = acquire.status_query(table.waits.current(enqueued.wait));
            core.query(core.clock_ms(), &query)
        });
        match reply {
            Some(Reply { outcome: Ok(answer), clock_ms, .. }) => {
                let reply = Reply { outcome: Ok(answer), clock_ms, awaits: None };
                Outcome::Reply(Bytes::from(codec::encode(&reply)))
            }
            _ => not_leader(self.shard),
        }
    }

    /// Cancels the attempt of a caller that cancelled. The request stays queued if other callers are attached.
    async fn cancel(&self, acquire: &WaitingCall, wait: WaitId) {
        let machine = &self.shard.machine;
        let leaves = machine.with_leader_state(self.term, |_, table| {
            let rules = table.rules();
            table.waits.abandon(wait, acquire.attempt(), rules)
        });
        let Some(attempts) = leaves.flatten() else { return };
        if self.propose_cancel(acquire, &attempts).await {
            machine.with_leader_state(self.term, |_, table| table.waits.on_cancelled(wait, &attempts));
        }
    }

    /// Cancels attempts in the state; returns false if that is not known to be done.
    async fn propose_cancel(&self, acquire: &WaitingCall, attempts: &[u64]) -> bool {
        let command = acquire.rollback().into_command(attempts);
        self.shard.cancel(self.term, acquire.namespace().account, command).await
    }

    /// Gives back a grant whose caller has left. No pending wait would repeat its cancel, so it is repeated here while
    /// this replica leads in the term.
    async fn cancel_grant(&self, acquire: &WaitingCall, attempt: u64) {
        if self.propose_cancel(acquire, &[attempt]).await {
            return;
        }
        // Nobody awaits the reply, so that the call no longer counts as one in progress.
        self.caller.defer().await;
        while self.shard.leads() == Some(self.term) {
            sleep(CANCEL_RETRY_DELAY).await;
            if self.propose_cancel(acquire, &[attempt]).await {
                return;
            }
        }
    }

    /// Ends the wait. A caller that disconnected before it received the grant may reconnect and collect it.
    fn deliver(&self, acquire: &WaitingCall, wait: WaitId, reply: Bytes) -> Option<Outcome> {
        if !self.caller.is_disconnected() {
            return Some(Outcome::Reply(reply));
        }
        let (attempt, give_back) = (acquire.attempt(), acquire.rollback());
        let machine = &self.shard.machine;
        machine.with_leader_state(self.term, |_, table| table.waits.grant_undelivered(wait, attempt, reply, give_back));
        None
    }
}

/// Returns the error for a call in whose place newer calls wait for the same request.
fn displaced() -> CommandError {
    let what = CALLERS_OF_WAIT.what.first().copied().unwrap_or(CALLERS_OF_WAIT.name).to_owned();
    CommandError::RateLimited { what, max: CALLERS_OF_WAIT.default_value(), wait_ms: DISPLACED_RETRY_MS }
}
