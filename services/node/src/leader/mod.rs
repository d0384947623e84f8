//! What the leader of a shard keeps in memory besides the state: who waits, which sessions show signs of life, who
//! is to be told.
//!
//! A [`LeaderState`] exists only while its replica leads and is rebuilt from the state by the next leader: nothing in it is a
//! fact that anybody relies on. It is changed under the lock of the state only, so that it is never behind or ahead.

mod change_notifier;
mod heartbeats;
mod lock_metrics;
mod pending_wait;
mod pending_waits;
mod subscriptions;

use bytes::Bytes;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    Acquire, AcquireOutcome, Cancel, CancelAttempts, Command, Effect, LocksCommand, NamespaceRef, Owner, Reattach,
    Reply, Response, Rules, codec,
};
use tokio::time::Instant;

pub(crate) use change_notifier::ChangeNotifier;
pub(crate) use heartbeats::{HeartbeatTable, KeepAlive, SessionKey};
pub(crate) use lock_metrics::{LockMetrics, describe};
pub(crate) use pending_waits::{Attachment, Orphaned, PendingWaits, RECONNECT_GRACE};
pub(crate) use subscriptions::SessionSubscriptions;

/// How many bits of an attempt count within its term: a hundred thousand calls a second for four months, and sixteen
/// million terms. Holds keep it, and few bytes matter there.
const ATTEMPT_BITS: u32 = 40;
/// As long as a node may lead next that counts so.
const ATTEMPT_BITS_OF_RULES_1: u32 = 32;

/// The memory of one leadership.
pub(crate) struct LeaderState {
    pub(crate) term: u64,
    attempts: u64,
    /// Those of the last entry.
    rules: Rules,
    pub(crate) waits: PendingWaits,
    pub(crate) heartbeats: HeartbeatTable,
    pub(crate) subscriptions: SessionSubscriptions,
    pub(crate) changes: ChangeNotifier,
    metrics: LockMetrics,
    /// Whether the duty that looks after callers looks at them already.
    has_quorum_guard: bool,
}

impl LeaderState {
    /// Begins a leadership: every session has its whole time to live, and every caller that waited has a while to come
    /// back.
    pub(crate) fn new(term: u64, rules: Rules, core: &ShardState) -> Self {
        let now = Instant::now();
        let mut heartbeats = HeartbeatTable::new(now);
        for lease in core.sessions() {
            let key = SessionKey::of(&lease.namespace, &lease.session_id);
            heartbeats.opened(key, lease.number, lease.ttl_ms, now);
        }
        let mut waits = PendingWaits::default();
        for lease in core.waits().filter(|lease| lease.wait.attempt > 0) {
            waits.adopt(lease.namespace, lease.wait.wait, &lease.attempts, now);
        }
        let (subscriptions, changes, metrics) =
            (SessionSubscriptions::default(), ChangeNotifier::default(), LockMetrics::new());
        Self { term, attempts: 0, rules, waits, heartbeats, subscriptions, changes, metrics, has_quorum_guard: false }
    }

    /// Gives a lease to every request that waits and has none: the duty that looks after them has begun anew.
    pub(crate) fn recover_waits(&mut self, core: &ShardState) {
        let now = Instant::now();
        for lease in core.waits().filter(|lease| lease.wait.attempt > 0) {
            if !self.waits.contains(lease.wait.wait) {
                self.waits.adopt(lease.namespace, lease.wait.wait, &lease.attempts, now);
            }
        }
    }

    /// Whether a duty has to look at the table earlier than it meant to. Said once.
    pub(crate) fn needs_wakeup(&mut self) -> bool {
        let wakes = self.waits.needs_reschedule() | self.heartbeats.needs_schedule();
        wakes || (!self.has_quorum_guard && self.has_callers())
    }

    /// Whether there are callers to look after; the duty that asks does so while there are.
    pub(crate) fn update_quorum_guard(&mut self) -> bool {
        self.has_quorum_guard = self.has_callers();
        self.has_quorum_guard
    }

    /// The number of the next attempt: rises within the term, and with it, and no two have the same. None when the term has
    /// no more.
    pub(crate) fn next_attempt(&mut self) -> Option<u64> {
        let bits = if self.rules < Rules::TWO { ATTEMPT_BITS_OF_RULES_1 } else { ATTEMPT_BITS };
        self.attempts = self.attempts.checked_add(1).filter(|attempts| attempts >> bits == 0)?;
        self.term.checked_mul(1 << bits)?.checked_add(self.attempts)
    }

    /// Begins an attempt of that acquire: as it is to be proposed, and what to propose. Nothing when there are no more
    /// numbers.
    pub(crate) fn begin_attempt(&mut self, core: &ShardState, acquire: Acquire) -> Option<(Acquire, LocksCommand)> {
        let acquire = Acquire { attempt: self.next_attempt()?, ..acquire };
        let place = core.queued_wait(&acquire);
        let abandoned = place.map_or_else(Vec::new, |(wait, there)| self.waits.replaced(wait, &there));
        let is_plain = abandoned.is_empty() || self.rules < Rules::TWO;
        let command = match is_plain {
            true => LocksCommand::Acquire(acquire.clone()),
            false => LocksCommand::Reattach(Reattach { acquire: acquire.clone(), abandoned }),
        };
        Some((acquire, command))
    }

    /// By which rules the leader writes.
    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// An entry of these rules was applied.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// A command was applied.
    pub(crate) fn on_reply(&mut self, command: &Command, reply: &Reply) {
        if matches!(command.inner(), Command::Accounts(_)) && reply.outcome.is_ok() {
            self.changes.notify_accounts();
        }
        let Command::Locks(command) = command else { return };
        let Some((acquire, left)) = command.as_acquire() else { return };
        let Ok(Response::Acquired { outcome, .. }) = &reply.outcome else { return };
        self.metrics.acquired(outcome);
        let AcquireOutcome::Enqueued(enqueued) = outcome else { return };
        if enqueued.attempt > 0 {
            self.waits.enqueued(&acquire.namespace, enqueued.wait, acquire.attempt, enqueued.attempt);
            self.waits.on_cancelled(enqueued.wait, left);
        }
    }

    /// Something happened that others are to be told of.
    pub(crate) fn on_effect(&mut self, effect: Effect, clock_ms: u64) {
        if let Effect::WaitResolved { outcome, .. } = &effect {
            self.metrics.wait_resolved(outcome);
        }
        match &effect {
            Effect::WaitResolved { wait, attempt, .. } if *attempt > 0 => {
                let wait = *wait;
                self.waits.resolve(wait, effect, clock_ms, self.rules);
            }
            Effect::WaitResolved { namespace, owner: Owner::Session { session_id, .. }, .. } => {
                self.subscriptions.notify(&SessionKey::of(namespace, session_id), &encode_update(clock_ms, &effect));
            }
            // Nobody is attached to it, nor follows.
            Effect::WaitResolved { .. } => {}
            Effect::Revoked { namespace, session_id, .. } => {
                self.subscriptions.notify(&SessionKey::of(namespace, session_id), &encode_update(clock_ms, &effect));
            }
            Effect::SessionOpened { namespace, number, session_id, epoch, ttl_ms } => {
                let key = SessionKey::of(namespace, session_id);
                self.subscriptions.superseded(&key, *epoch, &encode_update(clock_ms, &effect));
                self.heartbeats.opened(key, *number, *ttl_ms, Instant::now());
            }
            Effect::SessionEnded { namespace, number, session_id, .. } => {
                self.subscriptions.ended(&SessionKey::of(namespace, session_id), &encode_update(clock_ms, &effect));
                self.heartbeats.ended(*number);
            }
            Effect::Events { namespace, .. } => self.changes.notify(namespace),
            Effect::NamespaceClosed { namespace } => self.changes.remove(namespace),
        }
    }

    /// Whether somebody waits to be told something.
    fn has_callers(&self) -> bool {
        self.waits.has_callers() || !self.subscriptions.is_empty() || !self.changes.is_empty()
    }

    /// Sends everybody who waits away, to look for a leader that is not cut off.
    pub(crate) fn redirect_callers(&mut self) {
        self.waits.redirect_callers(Instant::now());
        self.subscriptions = SessionSubscriptions::default();
        self.changes = ChangeNotifier::default();
    }
}

/// What gives up an attempt or, when it was granted, gives it back.
pub(crate) fn cancel_of(effect: Effect) -> Option<Cancel> {
    let Effect::WaitResolved { namespace, owner, request_id, claims, attempt, .. } = effect else { return None };
    Some(Cancel { namespace, owner, request_id, claims, attempt })
}

/// The same for these attempts.
pub(crate) fn cancel_all(cancel: Cancel, attempts: &[u64]) -> Command {
    Command::Locks(match attempts {
        [] => LocksCommand::Cancel(cancel),
        [attempt] => LocksCommand::Cancel(Cancel { attempt: *attempt, ..cancel }),
        [attempt, abandoned @ ..] => {
            let (cancel, abandoned) = (Cancel { attempt: *attempt, ..cancel }, abandoned.to_vec());
            LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned })
        }
    })
}

fn encode_update(clock_ms: u64, effect: &Effect) -> Bytes {
    Bytes::from(codec::encode(&(clock_ms, effect)))
}

/// Names a namespace's life within a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceKey(u64, u64);

impl NamespaceKey {
    pub(crate) fn of(namespace: &NamespaceRef) -> Self {
        Self(namespace.account.0, namespace.incarnation.0)
    }
}
