//! Volatile state of a shard's leader: waiting callers, session keep-alives and subscribers.
//!
//! A [`LeaderState`] exists only while its replica leads; the next leader rebuilds it from the replicated state, so
//! nothing depends on its contents. It changes only under the state lock, so it is always in step with the state.

mod deferred_replies;
mod due_sessions;
mod heartbeats;
mod lock_metrics;
mod pending_wait;
mod pending_waits;
mod soft_tables;
mod subscriptions;
mod table_memory;
mod tables;
mod takeover;
mod waiting_call;

use bytes::Bytes;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, AcquireOutcome, Command, CommandError, ConditionCommand, Effect, EntryContext, Incarnation, Kind,
    LocksCommand, NamespaceRef, Owner, RateTable, Reply, Response, Rules, TableCommand, WaitId, codec,
};
use tokio::time::Instant;

use crate::memory::NodeMemory;
use waiting_call::{cancel_of, queued_call};

pub(crate) use deferred_replies::{DeferredReplies, DeferredReply, Released, release};
pub(crate) use heartbeats::{HeartbeatTable, KeepAlive};
pub(crate) use lock_metrics::{LockMetrics, describe};
pub(crate) use pending_wait::WaitNotice;
pub(crate) use pending_waits::{Attachment, Orphaned, PendingWaits, RECONNECT_GRACE};
pub(crate) use soft_tables::Garbage;
use soft_tables::SoftTables;
pub(crate) use subscriptions::{BufferedUpdate, Subscriptions};
pub(crate) use takeover::Takeover;
pub(crate) use waiting_call::{Rollback, WaitingCall, cancel_all, outcome_of};

/// Bits of an attempt number that count within its term: a hundred thousand calls per second for four months, and
/// sixteen million terms. Holds store the number, so its size matters.
const ATTEMPT_BITS: u32 = 40;
/// The same by rules 1, while a node that uses them may lead next.
const ATTEMPT_BITS_OF_RULES_1: u32 = 32;
/// Accounts whose changes are counted: so few because half of them are forgotten at once, under the lock of the state.
const MAX_RATED_ACCOUNTS: usize = 8_192;

/// Volatile state of one leadership.
pub(crate) struct LeaderState {
    pub(crate) term: u64,
    attempts: u64,
    /// The number of the last attempt that this leader state did not begin.
    last_foreign_attempt: u64,
    /// Rules of the last entry.
    rules: Rules,
    pub(crate) waits: PendingWaits,
    pub(crate) heartbeats: HeartbeatTable,
    pub(crate) subscriptions: Subscriptions,
    /// How often accounts change keys or namespaces, through all gateways together. The next leader starts without.
    pub(crate) change_rates: RateTable<AccountId>,
    pub(crate) questions: DeferredReplies,
    released: Vec<Released>,
    tables: SoftTables,
    metrics: LockMetrics,
    /// True if the quorum guard is already running for the callers.
    has_quorum_guard: bool,
}

impl LeaderState {
    /// Starts a leadership: every session gets its full time to live, and every waiting caller gets time to reconnect.
    pub(crate) fn new(term: u64, rules: Rules, core: &ShardState) -> Self {
        let mut begun = Takeover::new(term, rules);
        while !begun.take_page(core) {}
        begun.finish(rules)
    }

    fn empty(term: u64, rules: Rules, now: Instant) -> Self {
        Self {
            term,
            attempts: 0,
            last_foreign_attempt: 0,
            rules,
            waits: PendingWaits::default(),
            heartbeats: HeartbeatTable::new(now),
            subscriptions: Subscriptions::default(),
            change_rates: RateTable::new(MAX_RATED_ACCOUNTS),
            questions: DeferredReplies::default(),
            released: Vec::new(),
            tables: SoftTables::default(),
            metrics: LockMetrics::new(),
            has_quorum_guard: false,
        }
    }

    /// Continues the attempt numbers of an earlier leader state of the same term.
    #[must_use]
    pub(crate) fn with_attempts(self, attempts: u64) -> Self {
        let last_foreign_attempt = self.attempt_number(attempts).unwrap_or(u64::MAX);
        Self { attempts, last_foreign_attempt, ..self }
    }

    /// Counts what the lock tables in memory take towards the node's memory for them; `None` for any amount.
    #[must_use]
    pub(crate) fn with_table_memory(mut self, memory: Option<NodeMemory>) -> Self {
        self.tables.set_memory(memory);
        self
    }

    /// Returns the bytes of the lock tables in memory, as charged.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.tables.bytes()
    }

    /// Returns the attempts so far.
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts
    }

    /// Sets an expiry for every waiting request that has none, because the wait reaper was restarted.
    pub(crate) fn recover_waits(&mut self, core: &ShardState) {
        let now = Instant::now();
        for wait in core.adopted_waits(None).flat_map(|(_, waits)| waits) {
            if !self.waits.contains(wait.wait) {
                self.waits.adopt(wait, now);
            }
        }
    }

    /// Returns true, once, if a leader task must wake up earlier than scheduled.
    pub(crate) fn needs_wakeup(&mut self) -> bool {
        let wakes = self.waits.needs_reschedule() | self.heartbeats.needs_schedule() | self.tables.needs_wakeup();
        wakes || (!self.has_quorum_guard && self.has_callers())
    }

    /// Returns true if there are callers to guard; the quorum guard runs while there are.
    pub(crate) fn update_quorum_guard(&mut self) -> bool {
        self.has_quorum_guard = self.has_callers();
        self.has_quorum_guard
    }

    /// Returns the next attempt number, unique and rising within and across terms. `None` if the term has no numbers
    /// left.
    pub(crate) fn next_attempt(&mut self) -> Option<u64> {
        let attempts = self.attempts.checked_add(1)?;
        let number = self.attempt_number(attempts)?;
        self.attempts = attempts;
        Some(number)
    }

    /// Returns the number of the term's attempt at this position.
    fn attempt_number(&self, attempts: u64) -> Option<u64> {
        let bits = if self.rules < Rules::TWO { ATTEMPT_BITS_OF_RULES_1 } else { ATTEMPT_BITS };
        let in_term = Some(attempts).filter(|attempts| attempts >> bits == 0)?;
        self.term.checked_mul(1 << bits)?.checked_add(in_term)
    }

    /// Attaches the caller of an attempt. Returns `None` for an unknown wait, and for an attempt that an earlier leader
    /// state of the term began: this one takes its caller for disconnected.
    pub(crate) fn attach(&mut self, wait: WaitId, attempt: u64) -> Option<Attachment> {
        if attempt <= self.last_foreign_attempt {
            return None;
        }
        self.waits.attach(wait, attempt)
    }

    /// Begins an attempt of a call that may wait. Returns the call as proposed and the command to propose, or `None` if
    /// no attempt numbers are left.
    pub(crate) fn begin_attempt(
        &mut self,
        core: &ShardState,
        call: WaitingCall,
    ) -> Option<(WaitingCall, LocksCommand)> {
        let call = call.with_attempt(self.next_attempt()?);
        let place = call.queued(core);
        let abandoned = place.map_or_else(Vec::new, |(wait, there)| self.waits.replaced(wait, &there));
        let command = call.to_command(abandoned, self.rules);
        Some((call, command))
    }

    /// Returns the rules by which the leader writes.
    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// Records the rules of an applied entry.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Processes an applied command.
    pub(crate) fn on_reply(&mut self, command: &Command, reply: &Reply) {
        if matches!(command.inner(), Command::Accounts(_)) && reply.outcome.is_ok() {
            self.subscriptions.notify(None);
        }
        let Command::Locks(command) = command else { return };
        if let LocksCommand::Session(_) = command {
            // It has no attempts.
            return self.count_outcome(&reply.outcome);
        }
        let (Some(call), Some(outcome)) = (queued_call(command), outcome_of(reply)) else { return };
        if matches!(reply.outcome, Ok(Response::Acquired { .. })) {
            self.metrics.acquired(outcome);
        }
        let AcquireOutcome::Enqueued(enqueued) = outcome else { return };
        if enqueued.attempt > 0 {
            self.waits.enqueued(call.namespace, enqueued.wait, call.attempt, enqueued.attempt);
            self.waits.on_cancelled(enqueued.wait, call.left);
            if let LocksCommand::Condition(ConditionCommand::Await(awaits)) = command {
                self.waits.set_cancel(enqueued.wait, cancel_of(awaits));
            }
        }
    }

    /// Follows in the lock tables in memory what ended by force in the log: a reset, or a lock that was opened.
    pub(crate) fn on_forced_end(
        &mut self,
        core: &ShardState,
        context: &EntryContext,
        command: &Command,
        reply: &Reply,
    ) {
        match (command.inner(), &reply.outcome) {
            (Command::Locks(LocksCommand::Reset(reset)), Ok(_)) => self.tables.reset(core, context, reset),
            (Command::Locks(LocksCommand::Table(TableCommand::Forfeit(forfeit))), Ok(_)) => {
                self.tables.forfeit(core, context, forfeit);
            }
            _ => return,
        }
        self.publish_tables(core.clock_ms());
    }

    /// Counts the outcome of an acquire of a connected session.
    fn count_outcome(&self, outcome: &Result<Response, CommandError>) {
        match outcome {
            Ok(Response::Acquired { outcome, .. }) => self.metrics.acquired(outcome),
            Ok(Response::Granted { fencing_token }) => {
                self.metrics.acquired(&AcquireOutcome::Granted { fencing_token: *fencing_token });
            }
            _ => {}
        }
    }

    /// Records the clocks of an applied entry.
    pub(crate) fn begin_entry(&mut self, context: &EntryContext) {
        self.tables.begin_entry(context);
    }

    /// Follows an effect of an entry, and notifies the parties concerned.
    pub(crate) fn on_entry_effect(&mut self, core: &ShardState, effect: Effect) {
        self.tables.follow(&effect);
        if let Effect::SessionOpened { namespace, number, ttl_ms, .. } = &effect {
            match self.unreported(core, *number) {
                None => self.heartbeats.opened(*number, namespace.account, *ttl_ms, Instant::now()),
                Some(_) => self.heartbeats.resumed_unreported(*number, *ttl_ms),
            }
        }
        self.on_effect(effect, core.clock_ms());
    }

    /// Notifies the parties concerned of an effect.
    fn on_effect(&mut self, effect: Effect, clock_ms: u64) {
        if let Effect::WaitResolved { outcome, .. } = &effect {
            self.metrics.wait_resolved(outcome);
        }
        match &effect {
            Effect::WaitResolved { wait, attempt, .. }
            | Effect::PermitsResolved { wait, attempt, .. }
            | Effect::AwaitResolved { wait, attempt, .. }
                if *attempt > 0 =>
            {
                let wait = *wait;
                self.waits.resolve(wait, effect, clock_ms, self.rules);
            }
            Effect::WaitResolved { namespace, owner: Owner::Session { session_id, .. }, .. }
            | Effect::PermitsResolved { namespace, owner: Owner::Session { session_id, .. }, .. }
            | Effect::AwaitResolved { namespace, owner: Owner::Session { session_id, .. }, .. }
            | Effect::AwaitWoken { namespace, owner: Owner::Session { session_id, .. }, attempt: 0, .. } => {
                let key = SessionKey::of(namespace, session_id);
                self.subscriptions.update_session(&key, || encode_update(clock_ms, &effect));
            }
            // A process's wait has no subscriber, and no caller is attached.
            Effect::WaitResolved { .. } | Effect::PermitsResolved { .. } | Effect::AwaitResolved { .. } => {}
            Effect::AwaitWoken { from, wait, .. } => self.waits.moved(*from, *wait),
            Effect::LatchSettled { namespace, path } => {
                self.released.extend(self.questions.settled(namespace, Kind::Latch, path));
            }
            Effect::BarrierSettled { namespace, path } => {
                self.released.extend(self.questions.settled(namespace, Kind::Barrier, path));
            }
            Effect::Revoked { namespace, session_id, .. }
            | Effect::PermitsRevoked { namespace, session_id, .. }
            | Effect::ReleaseRequested { namespace, session_id, .. }
            | Effect::MetAtBarrier { namespace, session_id, .. } => {
                let key = SessionKey::of(namespace, session_id);
                self.subscriptions.update_session(&key, || encode_update(clock_ms, &effect));
            }
            Effect::SessionOpened { namespace, session_id, epoch, .. } => {
                let key = SessionKey::of(namespace, session_id);
                self.subscriptions.session_superseded(&key, *epoch, || encode_update(clock_ms, &effect));
            }
            Effect::SessionEnded { namespace, number, session_id, .. } => {
                let key = SessionKey::of(namespace, session_id);
                self.subscriptions.session_ended(key, encode_update(clock_ms, &effect));
                self.heartbeats.ended(*number);
            }
            Effect::Events { namespace, .. } => self.subscriptions.notify(Some(namespace)),
            Effect::NamespaceClosed { namespace } => {
                self.subscriptions.remove(namespace);
                self.released.extend(self.questions.namespace_closed(namespace));
            }
        }
    }

    /// Returns true if a caller waits for a notification.
    fn has_callers(&self) -> bool {
        self.waits.has_callers() || !self.subscriptions.is_empty() || !self.questions.is_empty()
    }

    /// Redirects all waiting callers, so that they find a leader that is not cut off.
    pub(crate) fn redirect_callers(&mut self) {
        self.waits.redirect_callers(Instant::now());
        self.released.push(Released::at_once(std::mem::take(&mut self.subscriptions)));
        self.released.extend(self.questions.redirect());
    }

    /// Takes what wakes callers by being dropped, for after the lock of the state is released.
    pub(crate) fn take_released(&mut self) -> Vec<Released> {
        std::mem::take(&mut self.released)
    }

    /// As above, for all callers: the leadership has ended.
    pub(crate) fn release_callers(&mut self) -> Vec<Released> {
        self.released.push(Released::at_once(std::mem::take(&mut self.waits)));
        self.released.push(Released::at_once(std::mem::take(&mut self.subscriptions)));
        self.released.extend(self.questions.redirect());
        self.take_released()
    }
}

/// Returns the encoded list with one [`holdfast_core::SessionUpdate`].
fn encode_update(clock_ms: u64, effect: &Effect) -> Bytes {
    Bytes::from(codec::encode(&[(clock_ms, effect)].as_slice()))
}

/// Identifies a session within a shard by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey(NamespaceKey, String);

impl SessionKey {
    pub(crate) fn of(namespace: &NamespaceRef, session_id: &str) -> Self {
        Self(NamespaceKey::of(namespace), session_id.to_owned())
    }

    fn namespace(&self) -> (AccountId, Incarnation) {
        let NamespaceKey(account, incarnation) = self.0;
        (AccountId(account), Incarnation(incarnation))
    }
}

/// Identifies an incarnation of a namespace within a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceKey(u64, u64);

impl NamespaceKey {
    pub(crate) fn of(namespace: &NamespaceRef) -> Self {
        Self(namespace.account.0, namespace.incarnation.0)
    }
}
