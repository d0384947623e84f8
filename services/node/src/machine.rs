//! A shard's state in memory, between the group that applies and the node that asks.

mod slices;

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::locks::Footprint;
use holdfast_core::outbox::OutboxMessage;
use holdfast_core::shard::{Application, PendingReply, ShardState};
use holdfast_core::{
    AccountId, Bounds, Command, CommandError, JobState, LocksCommand, Query, Reply, Revision, Rules, codec,
};
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, FrozenState, ReplyMode, StateMachine, StateMachineError,
};
use holdfast_supervise::catch_panic;
use metrics::{Histogram, histogram};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use crate::cost_estimates::CostEstimates;
use crate::leader::LeaderState;
use crate::memory::{NodeMemory, ShardMemory};
use crate::{failure, mutations};
use slices::Entry;

/// Places in the queue that are given up at a time. Thousands of callers may go away together, and what others ask for is
/// not to wait behind all of their cancels.
const CANCELS_AT_ONCE: usize = 64;

/// What the leader's duties wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardSignals {
    /// When the next hold ends, on the shard clock in milliseconds.
    pub next_deadline_ms: Option<u64>,
    /// That was over when the last entry was applied: there is more to end than one entry does.
    pub has_backlog: bool,
    /// The number that the next message in the outbox gets.
    pub outbox_next: u64,
    /// Messages in the outbox.
    pub outbox_len: usize,
    /// Long ends that were asked for and are done, since the start of the process.
    pub jobs_done: u64,
}

/// Sees what replicas apply, as they apply it. For checks of a whole cluster; it must not call back.
pub trait ApplyObserver: Send + Sync + 'static {
    /// A replica's state is new and empty.
    fn initialized(&self, shard: &str, state: &ShardState);
    /// An entry was applied: its commands, one reply for each, and the state after it.
    fn applied(&self, shard: &str, stamp: EntryHeader, commands: &[Bytes], replies: &[Bytes], state: &ShardState);
    /// The state was replaced by that of a snapshot.
    fn restored(&self, shard: &str, state: &ShardState);
}

/// The state of one shard on this node.
pub struct ShardMachine {
    application: Application,
    shard: String,
    /// When they are not those of the rules.
    bounds: Option<Bounds>,
    observer: Option<Arc<dyn ApplyObserver>>,
    inner: Mutex<Inner>,
    signals: watch::Sender<ShardSignals>,
    /// The table of the leader has something new to wait for.
    leader_state_changed: Notify,
    /// What became of sessions that were judged is known.
    expiry_resolved: Notify,
    leader_state_failed: watch::Sender<Option<String>>,
    cancels: Semaphore,
    /// What the state keeps for each account.
    memory: ShardMemory,
    /// What their commands take.
    costs: Mutex<CostEstimates>,
    /// How long each slice has the lock.
    slice_seconds: Histogram,
}

/// The state and, while this replica leads, what a leader keeps besides. One lock, so that they are never apart.
struct Inner {
    /// Nothing once an entry could not be applied to its end: a state that is half changed answers nobody.
    core: Option<ShardState>,
    /// Those of the next entry.
    rules: Rules,
    leader_state: Option<LeaderState>,
    /// The clock of the last applied entry, once there is no state any more.
    last_clock_ms: u64,
}

impl ShardMachine {
    /// An empty state; within the bounds of the rules unless it is told others.
    pub fn new(
        application: Application,
        shard: &str,
        bounds: Option<Bounds>,
        observer: Option<Arc<dyn ApplyObserver>>,
    ) -> Self {
        let core = match bounds.clone() {
            None => ShardState::new(application, shard),
            Some(bounds) => ShardState::with_bounds(application, shard, bounds),
        };
        let (signals, _) = watch::channel(signals_of(&core));
        if let Some(observer) = &observer {
            observer.initialized(shard, &core);
        }
        let inner = Mutex::new(Inner { core: Some(core), rules: Rules::LOWEST, leader_state: None, last_clock_ms: 0 });
        let (leader_state_changed, expiry_resolved, leader_state_failed) =
            (Notify::new(), Notify::new(), watch::Sender::new(None));
        Self {
            application,
            shard: shard.to_owned(),
            bounds,
            observer,
            inner,
            signals,
            leader_state_changed,
            expiry_resolved,
            leader_state_failed,
            cancels: Semaphore::new(CANCELS_AT_ONCE),
            memory: ShardMemory::new(NodeMemory::new(u64::MAX)),
            costs: Mutex::default(),
            slice_seconds: histogram!("holdfast_apply_slice_seconds"),
        }
    }

    /// What it keeps counts as a part of that.
    pub(crate) fn with_memory(mut self, memory: NodeMemory) -> Self {
        self.memory = ShardMemory::new(memory);
        self
    }

    /// Whether there may be commands for which there is no room.
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.memory.is_under_pressure()
    }

    /// Whether there is room for what a command makes.
    ///
    /// # Errors
    /// When there is none, on this node or for the account. What is there already is never refused, and nothing is by a
    /// replica that does not lead in that term.
    pub(crate) fn check_capacity(&self, term: u64, command: &LocksCommand) -> Result<(), CommandError> {
        let Some(account) = command.growing_account().filter(|_| self.is_under_pressure()) else { return Ok(()) };
        let refused = self.memory.check(account);
        let inner = self.inner.lock();
        let leads = inner.leader_state.as_ref().is_some_and(|table| table.term == term);
        match &inner.core {
            Some(core) if leads && inner.rules >= Rules::TWO && core.creates_state(command) => refused,
            _ => Ok(()),
        }
    }

    /// Bytes that the state keeps, as accounts are charged.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.memory.total()
    }

    /// Works with the state and the table of the leader of that term; nothing when it no longer leads. Duties are woken
    /// when they have to look earlier than they meant to.
    pub(crate) fn with_leader_state<T>(
        &self,
        term: u64,
        work: impl FnOnce(&ShardState, &mut LeaderState) -> T,
    ) -> Option<T> {
        self.inspect_as_leader(term, |core, table| {
            let done = work(core, table);
            if table.needs_wakeup() {
                self.leader_state_changed.notify_waiters();
            }
            done
        })
    }

    /// The same for duties that look what there is to do: a look wakes nobody, least of all themselves.
    pub(crate) fn inspect_as_leader<T>(
        &self,
        term: u64,
        look: impl FnOnce(&ShardState, &mut LeaderState) -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let Inner { core, leader_state, .. } = &mut *inner;
        let (core, leads) = (core.as_ref()?, leader_state.as_mut().filter(|leader_state| leader_state.term == term)?);
        let panicked = match catch_panic(|| look(core, leads)) {
            Ok(seen) => return Some(seen),
            Err(panicked) => panicked,
        };
        // The state was only looked at, so it is sound; the table may be half changed.
        let half = leader_state.take();
        let _ = catch_panic(move || drop(half));
        self.leader_state_failed.send_replace(Some(panicked.to_string()));
        None
    }

    /// Becomes `Some`, with the reason, when the table of the leader has failed: this replica must not lead on.
    pub(crate) fn leader_state_failed(&self) -> watch::Receiver<Option<String>> {
        self.leader_state_failed.subscribe()
    }

    /// Whoever proposes to give a place in the queue up has one of these meanwhile.
    pub(crate) fn cancels(&self) -> &Semaphore {
        &self.cancels
    }

    /// Wakes the duties that wait for something in the table.
    pub(crate) fn leader_state_changed(&self) -> &Notify {
        &self.leader_state_changed
    }

    /// Wakes those who wait for what becomes of a session that is being judged. Not the same as a change of the table: a
    /// look at it may wake duties, and whoever looks again whenever it changed would wake itself without end.
    pub(crate) fn expiry_resolved(&self) -> &Notify {
        &self.expiry_resolved
    }

    /// Follows what the duties wait for.
    pub fn signals(&self) -> watch::Receiver<ShardSignals> {
        self.signals.subscribe()
    }

    /// Answers a query from the last applied entry; not at all when the machine has failed. `clock_ms` is the running
    /// clock.
    pub fn query(&self, clock_ms: u64, query: &Query) -> Option<Reply> {
        self.begin_query(clock_ms, query).map(PendingReply::finish)
    }

    /// The same as far as it takes the lock of the state.
    pub(crate) fn begin_query(&self, clock_ms: u64, query: &Query) -> Option<PendingReply> {
        self.inspect(|core| mutations::query(core, clock_ms, query))
    }

    /// The state as it is now, to look at; nothing when the machine has failed.
    pub(crate) fn frozen_state(&self) -> Option<holdfast_core::shard::FrozenShard> {
        self.inspect(ShardState::freeze)
    }

    /// How much the state keeps; nothing when the machine has failed.
    pub fn usage(&self) -> Footprint {
        self.inspect(ShardState::footprint).unwrap_or_default()
    }

    /// The oldest messages of the outbox.
    pub fn outbox(&self, at_most: usize) -> Vec<(u64, OutboxMessage)> {
        let oldest = |core: &ShardState| {
            let messages = core.outbox().messages().iter().take(at_most);
            messages.map(|(number, message)| (*number, message.clone())).collect()
        };
        self.inspect(oldest).unwrap_or_default()
    }

    /// Whether a reply that awaits this message may be given.
    pub fn is_settled(&self, number: u64) -> bool {
        self.inspect(|core| core.outbox().is_confirmed(number)).unwrap_or(false)
    }

    /// How far it is with what a reply awaits.
    pub(crate) fn job_state(&self, began: Revision) -> JobState {
        self.inspect(|core| core.job_state(began)).unwrap_or(JobState::Unknown)
    }

    fn inspect<T>(&self, look: impl FnOnce(&ShardState) -> T) -> Option<T> {
        self.inner.lock().core.as_ref().map(look)
    }

    /// What is half changed goes, with everything that a leader keeps besides.
    fn fail(&self, inner: &mut Inner) {
        let clock_ms = catch_panic(|| inner.core.as_ref().map_or(inner.last_clock_ms, ShardState::clock_ms));
        inner.last_clock_ms = clock_ms.unwrap_or(inner.last_clock_ms);
        let (core, table) = (inner.core.take(), inner.leader_state.take());
        // Whatever is wrong with them may show again.
        let _ = catch_panic(move || drop(table));
        let _ = catch_panic(move || drop(core));
        self.memory.reset(&[]);
        self.leader_state_changed.notify_waiters();
        self.expiry_resolved.notify_waiters();
    }
}

fn signals_of(core: &ShardState) -> ShardSignals {
    let next_deadline_ms = core.next_deadline_ms();
    ShardSignals {
        next_deadline_ms,
        has_backlog: next_deadline_ms.is_some_and(|at_ms| at_ms <= core.clock_ms()),
        outbox_next: core.outbox().next_number(),
        outbox_len: core.outbox().messages().len(),
        jobs_done: core.jobs_done(),
    }
}

/// Reads a command that is to be applied by those rules.
///
/// # Errors
/// When this program does not know it, or those rules don't: nobody can apply it as all others do.
fn decode(rules: Rules, bytes: &[u8]) -> Result<Command, StateMachineError> {
    let command: Command =
        codec::decode(bytes).map_err(|error| StateMachineError(format!("a command can't be read: {error}")))?;
    let needs = command.min_rules();
    if needs > rules {
        return Err(StateMachineError(format!(
            "a command belongs to rules {needs}, and the shard goes by rules {rules}"
        )));
    }
    Ok(command)
}

fn decode_all(rules: Rules, commands: &[Bytes]) -> Result<Vec<Command>, ApplyFailure> {
    let reading = commands.iter().zip(0..);
    reading
        .map(|(bytes, number)| decode(rules, bytes).map_err(|error| failure::from_undecodable(number, bytes, error)))
        .collect()
}

impl StateMachine for ShardMachine {
    fn apply<'a>(
        &'a self,
        stamp: EntryHeader,
        commands: &'a [Bytes],
        replies: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        // All are read before the first is applied, so that a replica that stops is as it was before the entry.
        let read = decode_all(Rules(stamp.rules), commands)?;
        let encodes = replies == ReplyMode::Encode || self.observer.is_some();
        self.apply_next_slice(Entry::new(stamp, commands, read, encodes))
    }

    fn assess(&self, rules: u16, command: &[u8]) -> Result<CommandCost, StateMachineError> {
        let command = decode(Rules(rules), command)?;
        Ok(CommandCost { account: command.account().map_or(0, |account| account.0), units: command.min_units() })
    }

    fn price(&self, account: u64, min_units: u64) -> u64 {
        self.costs.lock().price(AccountId(account), min_units, Instant::now())
    }

    fn set_rules(&self, rules: u16) {
        let mut inner = self.inner.lock();
        inner.rules = Rules(rules);
        if let Some(table) = inner.leader_state.as_mut() {
            table.set_rules(Rules(rules));
        }
    }

    fn on_leadership_change(&self, term: Option<u64>) {
        let mut inner = self.inner.lock();
        let rules = inner.rules;
        inner.leader_state = term.zip(inner.core.as_ref()).map(|(term, core)| LeaderState::new(term, rules, core));
        drop(inner);
        self.leader_state_changed.notify_waiters();
        self.expiry_resolved.notify_waiters();
    }

    fn clock_ms(&self) -> u64 {
        let inner = self.inner.lock();
        inner.core.as_ref().map_or(inner.last_clock_ms, ShardState::clock_ms)
    }

    fn freeze(&self) -> Result<FrozenState, StateMachineError> {
        let frozen = self.inspect(|core| mutations::snapshot_source(core).freeze());
        let frozen = frozen.ok_or_else(|| StateMachineError(format!("shard {} has no state to save", self.shard)))?;
        Ok(Box::new(move || frozen.encode().into_iter().map(Bytes::from).collect()))
    }

    fn restore(&self, chunks: &[Bytes]) -> Result<(), StateMachineError> {
        if mutations::skips_restore() {
            return Ok(());
        }
        let restored = match self.bounds.clone() {
            None => ShardState::restore(self.application, &self.shard, chunks),
            Some(bounds) => ShardState::restore_with_bounds(self.application, &self.shard, chunks, bounds),
        };
        let mut restored = restored.map_err(|error| {
            StateMachineError(format!("the snapshot of shard {} can't be read: {error}", self.shard))
        })?;
        if let Some(observer) = &self.observer {
            observer.restored(&self.shard, &restored);
        }
        self.memory.reset(&restored.take_changed_charges());
        let mut inner = self.inner.lock();
        let signals = signals_of(&restored);
        inner.core = Some(restored);
        drop(inner);
        self.signals.send_replace(signals);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
