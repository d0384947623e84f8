//! A shard's state in memory, shared by the group, which applies sections, and the node, which queries it.

mod checkpoint;
mod command_checks;
mod decoding;
mod exceptions;
mod health;
mod leader_state;
mod slices;
mod snapshot;

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::Application;
use holdfast_core::locks::Footprint;
use holdfast_core::outbox::OutboxMessage;
use holdfast_core::shard::{FrozenShard, PendingReply, ShardState};
use holdfast_core::{Bounds, Command, JobState, Query, Reply, Revision, Rules, codec};
use holdfast_replication::{Applied, ApplyFailure, EntryHeader, FailedEntry, ReplyMode, StateMachineError};
use holdfast_supervise::catch_panic;
use metrics::{Histogram, histogram};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::cancel_queue::CancelQueue;
use crate::cost_estimates::CostEstimates;
use crate::leader::{LeaderState, Takeover, release};
use crate::memory::{NodeMemory, ShardMemory};
use crate::run_markers::{FatalStep, StepMarkers};
use crate::{failure, mutations};
pub(crate) use checkpoint::{Checkpoint, digest_of};
use decoding::UndecodedSection;
pub(crate) use exceptions::{ShardExceptions, encode_left_out};
use health::SectionList;
pub(crate) use health::{Adoption, DeferredSection, FailedHistory, MAX_READ_BYTES, Outage, ShardHealth};
use slices::free_in_background;
pub use slices::{ApplyObserver, MAX_SLICE_COMMANDS};
pub(crate) use snapshot::{ReadPart, state_part};

/// State that the leader tasks wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardSignals {
    /// When the next hold ends, on the shard clock in milliseconds. Where all lock tables are in the log, subscribers are
    /// not told when it becomes later.
    pub next_deadline_ms: Option<u64>,
    /// True if the last entry left work that was already due.
    pub has_backlog: bool,
    /// The number of the next outbox message.
    pub outbox_next: u64,
    /// Messages in the outbox.
    pub outbox_len: usize,
    /// Finished sweeps since the start of the process.
    pub sweeps_done: u64,
    /// True if there are namespaces whose lock tables are in the leader's memory.
    pub has_soft_tables: bool,
}

impl ShardSignals {
    /// Returns whether the next signals tell more than that the next deadline is later, or that there is none. For a
    /// table in memory that may be the end of a session's transition, which a rebuild awaits.
    fn is_news(&self, next: &Self) -> bool {
        let at = |deadline: Option<u64>| deadline.unwrap_or(u64::MAX);
        let has_moved = next.has_soft_tables && next.next_deadline_ms != self.next_deadline_ms;
        has_moved
            || at(next.next_deadline_ms) < at(self.next_deadline_ms)
            || Self { next_deadline_ms: self.next_deadline_ms, ..*next } != *self
    }

    /// Returns how many sweeps are finished, and how many outbox messages are confirmed.
    fn completions(&self) -> (u64, u64) {
        (self.sweeps_done, self.outbox_next.saturating_sub(self.outbox_len as u64))
    }
}

/// The state of one shard on this node.
pub struct ShardMachine {
    application: Application,
    shard: String,
    /// Bounds that replace the bounds of the rules.
    bounds: Option<Bounds>,
    observer: Option<Arc<dyn ApplyObserver>>,
    /// Commands in an apply slice.
    slice_commands: usize,
    inner: Mutex<Inner>,
    signals: watch::Sender<ShardSignals>,
    /// The completions of the signals. Thousands may await one, and each entry changes some other signal.
    completions: watch::Sender<(u64, u64)>,
    /// Notifies leader tasks that the leader state has something new to wait for.
    leader_state_changed: Notify,
    /// Notifies waiters that the outcome of expiring sessions is known.
    expiry_resolved: Notify,
    leader_state_failed: watch::Sender<Option<String>>,
    health: watch::Sender<ShardHealth>,
    /// The latest checkpoint since the process started.
    checkpoint: watch::Sender<Option<Arc<Checkpoint>>>,
    cancels: CancelQueue,
    /// Memory usage per account.
    memory: ShardMemory,
    /// Expected cost of commands per account and kind.
    costs: Mutex<CostEstimates>,
    /// How long each slice holds the lock.
    slice_seconds: Histogram,
    /// How much processor time one of several takes meanwhile.
    slice_cpu_seconds: Histogram,
    /// The file in which each step is noted before it runs, in a process that searches for the step that ends it.
    steps: Option<Arc<StepMarkers>>,
    /// The step that ended the process, which is not tried again.
    fatal: Option<FatalStep>,
}

/// The state and, while this replica leads, the leader state. One lock keeps them in step.
struct Inner {
    /// `None` once an entry failed midway: a partly changed state serves no queries.
    core: Option<ShardState>,
    /// The rules of the next entry.
    rules: Rules,
    /// The term in which this replica leads, also while there is no state.
    leads: Option<u64>,
    leader_state: Option<LeaderState>,
    /// The leader state of a leadership that is to begin, as long as the state has not changed since.
    takeover: Option<Takeover>,
    /// The node's memory for lock tables that are in no log; `None` for any amount.
    table_memory: Option<NodeMemory>,
    /// The latest leader state's term and attempts, once it is gone within its term.
    last_attempts: (u64, u64),
    /// The clock of the last applied entry, once the state is gone.
    last_clock_ms: u64,
    /// Rises whenever the state is replaced or lost: a rebuild that began before is not put in place.
    epoch: u64,
    /// What the shard was made of up to the entry that it failed at for good.
    kept: Option<FailedHistory>,
    /// Sections since the entry that failed.
    backlog: SectionList,
    /// The exceptions: commands and namespaces left out of the history.
    exceptions: ShardExceptions,
    /// True if the saved part may differ from the state though no section came since: it has sections, which were
    /// applied here, or the state was built again.
    differs_from_part: bool,
    /// Slices until the next one whose processor time is measured.
    unmeasured_slices: u8,
}

impl ShardMachine {
    /// Creates an empty state; `bounds`, if given, replace the bounds of the rules.
    pub fn new(
        application: Application,
        shard: &str,
        bounds: Option<Bounds>,
        observer: Option<Arc<dyn ApplyObserver>>,
    ) -> Self {
        let core = empty_state(application, shard, bounds.clone());
        let first = signals_of(&core);
        let (signals, completions) = (watch::Sender::new(first), watch::Sender::new(first.completions()));
        if let Some(observer) = &observer {
            observer.initialized(shard, &core);
        }
        let inner = Mutex::new(Inner::new(core));
        let (leader_state_changed, expiry_resolved, leader_state_failed) =
            (Notify::new(), Notify::new(), watch::Sender::new(None));
        Self {
            application,
            shard: shard.to_owned(),
            bounds,
            observer,
            slice_commands: MAX_SLICE_COMMANDS,
            inner,
            signals,
            completions,
            leader_state_changed,
            expiry_resolved,
            leader_state_failed,
            health: watch::Sender::new(ShardHealth::Healthy),
            checkpoint: watch::Sender::new(None),
            cancels: CancelQueue::new(),
            memory: ShardMemory::new(NodeMemory::new(u64::MAX)),
            costs: Mutex::default(),
            slice_seconds: histogram!("holdfast_apply_slice_seconds"),
            slice_cpu_seconds: histogram!("holdfast_apply_slice_cpu_seconds"),
            steps: None,
            fatal: None,
        }
    }

    /// Has each step noted before it, and one of them never tried again.
    pub(crate) fn with_markers(mut self, steps: Option<Arc<StepMarkers>>, fatal: Option<FatalStep>) -> Self {
        (self.steps, self.fatal) = (steps, fatal);
        self
    }

    /// Returns how much was left out of the section where the process ended, if it ended at this failure.
    pub(crate) fn ended_process_at(&self, failed: &FailedEntry) -> Option<u32> {
        let at = (failed.term, failed.index, failed.failure.step);
        self.fatal.as_ref().filter(|fatal| (fatal.term, fatal.index, fatal.step) == at).map(|fatal| fatal.left_out)
    }

    /// Returns the id of the shard.
    pub(crate) fn id(&self) -> &str {
        &self.shard
    }

    /// Counts the shard's usage towards the node's memory.
    pub(crate) fn with_memory(mut self, memory: NodeMemory) -> Self {
        self.memory = ShardMemory::new(memory);
        self
    }

    /// Counts what the shard's lock tables take of the leader's memory towards the node's.
    pub(crate) fn with_table_memory(mut self, memory: NodeMemory) -> Self {
        self.inner.get_mut().table_memory = Some(memory);
        self
    }

    /// Returns true if commands may lack memory.
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.memory.is_under_pressure()
    }

    /// Returns the bytes of the state, as charged to accounts.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.memory.total()
    }

    /// Returns the bytes of the lock tables in this leader's memory, as charged; 0 if the replica does not lead.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.inner.lock().leader_state.as_ref().map_or(0, LeaderState::table_bytes)
    }

    /// Runs `work` on the state and the leader state of this term; returns `None` if the replica no longer leads. Wakes
    /// leader tasks that must run earlier than scheduled.
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

    /// As above, for leader tasks that only check for work: it wakes no task, least of all the caller.
    pub(crate) fn inspect_as_leader<T>(
        &self,
        term: u64,
        look: impl FnOnce(&ShardState, &mut LeaderState) -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let Inner { core, leader_state, .. } = &mut *inner;
        let (core, leads) = (core.as_ref()?, leader_state.as_mut().filter(|leader_state| leader_state.term == term)?);
        let looked = catch_panic(|| {
            let seen = look(core, leads);
            (seen, leads.take_released(), leads.take_garbage())
        });
        let panicked = match looked {
            Ok((seen, released, garbage)) => {
                drop(inner);
                release(released);
                if !garbage.is_empty() {
                    free_in_background(garbage);
                }
                return Some(seen);
            }
            Err(panicked) => panicked,
        };
        // The state was only read, so it is sound; the leader state may be partly changed.
        self.drop_leader_state(&mut inner, &panicked);
        None
    }

    /// The cancels that wait for an entry.
    pub(crate) fn cancels(&self) -> &CancelQueue {
        &self.cancels
    }

    /// Wakes leader tasks that wait for a change of the leader state.
    pub(crate) fn leader_state_changed(&self) -> &Notify {
        &self.leader_state_changed
    }

    /// Wakes waiters for the outcome of an expiring session. Separate from leader state changes: checking the leader
    /// state may wake tasks, so a task that checks on every change would wake itself endlessly.
    pub(crate) fn expiry_resolved(&self) -> &Notify {
        &self.expiry_resolved
    }

    /// Subscribes to the signals for leader tasks.
    pub fn signals(&self) -> watch::Receiver<ShardSignals> {
        self.signals.subscribe()
    }

    /// Notifies deferred replies: only when a sweep is finished, an outbox message is confirmed, or the state is
    /// replaced.
    pub(crate) fn completions(&self) -> watch::Receiver<(u64, u64)> {
        self.completions.subscribe()
    }

    /// Publishes the signals after a slice. A deadline that is only later wakes nobody: who sleeps until the one before
    /// looks again then, and in a busy shard the hold that is to end next is released all the time.
    fn update_signals(&self, signals: ShardSignals) {
        let completions = signals.completions();
        self.signals.send_if_modified(|current| std::mem::replace(current, signals).is_news(&signals));
        self.completions.send_if_modified(|current| std::mem::replace(current, completions) != completions);
    }

    /// Publishes the signals of another state.
    fn replace_signals(&self, signals: ShardSignals) {
        self.signals.send_replace(signals);
        self.completions.send_replace(signals.completions());
    }

    /// Returns whether there are namespaces whose lock tables are in the leader's memory.
    pub(crate) fn has_soft_tables(&self) -> bool {
        self.signals.borrow().has_soft_tables
    }

    /// Answers a query from the last applied entry, or returns `None` if the machine has failed. `clock_ms` is the
    /// running clock.
    pub fn query(&self, clock_ms: u64, query: &Query) -> Option<Reply> {
        self.inspect(|core| mutations::query(core, clock_ms, query)).map(PendingReply::finish)
    }

    /// Returns a frozen copy of the state, or `None` if the machine has failed.
    pub(crate) fn frozen_state(&self) -> Option<FrozenShard> {
        self.inspect(ShardState::freeze)
    }

    /// Returns the size of the state; zero if the machine has failed.
    pub fn usage(&self) -> Footprint {
        self.inspect(ShardState::footprint).unwrap_or_default()
    }

    /// Returns the numbers and destinations of the first outbox messages after that number; none if the machine has
    /// failed.
    pub(crate) fn outbox_after(&self, number: u64, at_most: usize) -> Vec<(u64, Application, u32)> {
        let oldest = |core: &ShardState| {
            let messages = core.outbox().messages().range(number.saturating_add(1)..).take(at_most);
            messages.map(|(number, message)| (*number, message.application, message.shard_key)).collect()
        };
        self.inspect(oldest).unwrap_or_default()
    }

    /// Returns the pending ones of these outbox messages, or `None` if the machine has failed.
    pub(crate) fn outbox_messages(&self, numbers: &[u64]) -> Option<Vec<(u64, OutboxMessage)>> {
        self.inspect(|core| {
            let messages = core.outbox().messages();
            numbers.iter().filter_map(|number| Some((*number, messages.get(number)?.clone()))).collect()
        })
    }

    /// Returns true if this outbox message is confirmed, so that a reply awaiting it may be sent.
    pub fn is_settled(&self, number: u64) -> bool {
        self.inspect(|core| core.outbox().is_confirmed(number)).unwrap_or(false)
    }

    /// Returns the progress of the job that a reply awaits.
    pub(crate) fn job_state(&self, began: Revision) -> JobState {
        self.inspect(|core| core.job_state(began)).unwrap_or(JobState::Unknown)
    }

    /// Looks at the state, or returns `None` if the machine has failed.
    pub(crate) fn inspect<T>(&self, look: impl FnOnce(&ShardState) -> T) -> Option<T> {
        self.inner.lock().core.as_ref().map(look)
    }
}

impl Inner {
    fn new(core: ShardState) -> Self {
        Self {
            core: Some(core),
            rules: Rules::LOWEST,
            leads: None,
            leader_state: None,
            takeover: None,
            table_memory: None,
            last_attempts: (0, 0),
            last_clock_ms: 0,
            epoch: 0,
            kept: None,
            backlog: SectionList::default(),
            exceptions: ShardExceptions::default(),
            differs_from_part: false,
            unmeasured_slices: 0,
        }
    }
}

fn empty_state(application: Application, shard: &str, bounds: Option<Bounds>) -> ShardState {
    match bounds {
        None => ShardState::new(application, shard),
        Some(bounds) => ShardState::with_bounds(application, shard, bounds),
    }
}

fn signals_of(core: &ShardState) -> ShardSignals {
    ShardSignals {
        next_deadline_ms: core.next_deadline_ms(),
        has_backlog: core.has_backlog(),
        outbox_next: core.outbox().next_number(),
        outbox_len: core.outbox().messages().len(),
        sweeps_done: core.sweeps_done(),
        has_soft_tables: core.has_soft_tables(),
    }
}

/// Decodes a command that is to be applied by these rules.
///
/// # Errors
/// When this program or these rules don't know it, since no replica could apply it as all others do.
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

/// What the group's machine does with each of its shards.
impl ShardMachine {
    /// Starts to apply the section of an entry for this shard: see [`holdfast_replication::StateMachine::apply`].
    pub(crate) fn apply<'a>(
        &'a self,
        header: EntryHeader,
        commands: &'a [Bytes],
        replies: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        let Some(exceptions) = self.begin_section(header, commands) else { return Ok(Applied::Done(Vec::new())) };
        let left_out = exceptions.count();
        if let Some(fatal) = self.fatal_step(header).filter(|fatal| left_out <= fatal.left_out) {
            return Err(failure::from_process_end(fatal.step, commands));
        }
        let encodes = replies == ReplyMode::Encode || self.observer.is_some();
        let section = UndecodedSection::new(header, commands, encodes, exceptions);
        match self.steps.as_deref().filter(|steps| steps.is_on()) {
            None => self.decode_next(section),
            Some(steps) => self.apply_marked(section.decode_all()?, steps, left_out),
        }
    }

    /// Returns the step of this entry that ended the process, if any.
    fn fatal_step(&self, header: EntryHeader) -> Option<&FatalStep> {
        self.fatal.as_ref().filter(|fatal| (fatal.term, fatal.index) == (header.term, header.index))
    }

    pub(crate) fn set_rules(&self, rules: u16) {
        let mut inner = self.inner.lock();
        inner.rules = Rules(rules);
        if let Some(table) = inner.leader_state.as_mut() {
            table.set_rules(Rules(rules));
        }
    }

    pub(crate) fn on_leadership_change(&self, term: Option<u64>) {
        let mut inner = self.inner.lock();
        let released = inner.leader_state.as_mut().map(LeaderState::release_callers);
        // One of the same term continues its attempts.
        let garbage = inner.take_leader_state().map(|mut earlier| earlier.end_tables()).unwrap_or_default();
        inner.leads = term;
        let failed = inner.build_leader_state();
        // Under the lock, so that the next failure is not lost.
        self.leader_state_failed.send_replace(failed);
        drop(inner);
        release(released.unwrap_or_default());
        if !garbage.is_empty() {
            free_in_background(garbage);
        }
        self.leader_state_changed.notify_waiters();
        self.expiry_resolved.notify_waiters();
    }

    /// Returns the time of the last section.
    pub(crate) fn clock_ms(&self) -> u64 {
        let inner = self.inner.lock();
        inner.core.as_ref().map_or(inner.last_clock_ms, ShardState::clock_ms)
    }
}

#[cfg(test)]
mod tests;
