//! A shard's state in memory, between the group that applies and the node that asks.

mod slices;

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::locks::Footprint;
use holdfast_core::outbox::OutboxMessage;
use holdfast_core::shard::{Application, PendingReply, ShardCore};
use holdfast_core::{Bounds, Command, JobState, LocksCommand, Query, Refusal, Reply, Revision, Rules, codec};
use holdfast_replication::{Applied, Frozen, Machine, MachineError, MachineFailure, Replies, Stamp};
use holdfast_supervise::catch;
use metrics::{Histogram, histogram};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::leader::Table;
use crate::memory::{NodeMemory, ShardMemory};
use crate::{failure, planted};
use slices::Entry;

/// Places in the queue that are given up at a time. Thousands of callers may go away together, and what others ask for is
/// not to wait behind all of their cancels.
const CANCELS_AT_ONCE: usize = 64;

/// What the leader's duties wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signals {
    /// When the next hold ends, on the shard clock in milliseconds.
    pub next_deadline_ms: Option<u64>,
    /// That was over when the last entry was applied: there is more to end than one entry does.
    pub is_behind: bool,
    /// The number that the next message in the outbox gets.
    pub outbox_next: u64,
    /// Messages in the outbox.
    pub outbox_len: usize,
    /// Long ends that were asked for and are done, since the start of the process.
    pub jobs_done: u64,
}

/// Sees what replicas apply, as they apply it. For checks of a whole cluster; it must not call back.
pub trait Observer: Send + Sync + 'static {
    /// A replica's state is new and empty.
    fn began(&self, shard: &str, state: &ShardCore);
    /// An entry was applied: its commands, one reply for each, and the state after it.
    fn applied(&self, shard: &str, stamp: Stamp, commands: &[Bytes], replies: &[Bytes], state: &ShardCore);
    /// The state was replaced by that of a snapshot.
    fn restored(&self, shard: &str, state: &ShardCore);
}

/// The state of one shard on this node.
pub struct ShardMachine {
    application: Application,
    shard: String,
    /// When they are not those of the rules.
    bounds: Option<Bounds>,
    observer: Option<Arc<dyn Observer>>,
    inner: Mutex<Inner>,
    signals: watch::Sender<Signals>,
    /// The table of the leader has something new to wait for.
    table_changed: Notify,
    /// What became of sessions that were judged is known.
    judged: Notify,
    table_failed: watch::Sender<Option<String>>,
    cancels: Semaphore,
    /// What the state keeps for each account.
    memory: ShardMemory,
    /// How long each slice has the lock.
    slice_seconds: Histogram,
}

/// The state and, while this replica leads, what a leader keeps besides. One lock, so that they are never apart.
struct Inner {
    /// Nothing once an entry could not be applied to its end: a state that is half changed answers nobody.
    core: Option<ShardCore>,
    /// Those of the next entry.
    rules: Rules,
    table: Option<Table>,
    /// The clock of the last applied entry, once there is no state any more.
    last_clock_ms: u64,
}

impl ShardMachine {
    /// An empty state; within the bounds of the rules unless it is told others.
    pub fn new(
        application: Application,
        shard: &str,
        bounds: Option<Bounds>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let core = match bounds.clone() {
            None => ShardCore::new(application, shard),
            Some(bounds) => ShardCore::with_bounds(application, shard, bounds),
        };
        let (signals, _) = watch::channel(signals_of(&core));
        if let Some(observer) = &observer {
            observer.began(shard, &core);
        }
        let inner = Mutex::new(Inner { core: Some(core), rules: Rules::LOWEST, table: None, last_clock_ms: 0 });
        let (table_changed, judged, table_failed) = (Notify::new(), Notify::new(), watch::Sender::new(None));
        Self {
            application,
            shard: shard.to_owned(),
            bounds,
            observer,
            inner,
            signals,
            table_changed,
            judged,
            table_failed,
            cancels: Semaphore::new(CANCELS_AT_ONCE),
            memory: ShardMemory::new(NodeMemory::new(u64::MAX)),
            slice_seconds: histogram!("holdfast_apply_slice_seconds"),
        }
    }

    /// What it keeps counts as a part of that.
    pub(crate) fn counted_in(mut self, memory: NodeMemory) -> Self {
        self.memory = ShardMemory::new(memory);
        self
    }

    /// Whether there may be commands for which there is no room.
    pub(crate) fn is_tight(&self) -> bool {
        self.memory.is_tight()
    }

    /// Whether there is room for what a command makes.
    ///
    /// # Errors
    /// When there is none, on this node or for the account. What is there already is never refused, and nothing is by a
    /// replica that does not lead in that term.
    pub(crate) fn check_room(&self, term: u64, command: &LocksCommand) -> Result<(), Refusal> {
        let Some(account) = command.grows().filter(|_| self.is_tight()) else { return Ok(()) };
        let refused = self.memory.check(account);
        let inner = self.inner.lock();
        let leads = inner.table.as_ref().is_some_and(|table| table.term == term);
        match &inner.core {
            Some(core) if leads && inner.rules >= Rules::TWO && core.makes_something(command) => refused,
            _ => Ok(()),
        }
    }

    /// Bytes that the state keeps, as accounts are charged.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.memory.total()
    }

    /// Works with the state and the table of the leader of that term; nothing when it no longer leads. Duties are woken
    /// when they have to look earlier than they meant to.
    pub(crate) fn as_leader<T>(&self, term: u64, work: impl FnOnce(&ShardCore, &mut Table) -> T) -> Option<T> {
        self.look_as_leader(term, |core, table| {
            let done = work(core, table);
            if table.wakes_duties() {
                self.table_changed.notify_waiters();
            }
            done
        })
    }

    /// The same for duties that look what there is to do: a look wakes nobody, least of all themselves.
    pub(crate) fn look_as_leader<T>(&self, term: u64, look: impl FnOnce(&ShardCore, &mut Table) -> T) -> Option<T> {
        let mut inner = self.inner.lock();
        let Inner { core, table, .. } = &mut *inner;
        let (core, leads) = (core.as_ref()?, table.as_mut().filter(|table| table.term == term)?);
        let panicked = match catch(|| look(core, leads)) {
            Ok(seen) => return Some(seen),
            Err(panicked) => panicked,
        };
        // The state was only looked at, so it is sound; the table may be half changed.
        let half = table.take();
        let _ = catch(move || drop(half));
        self.table_failed.send_replace(Some(panicked.to_string()));
        None
    }

    /// Becomes `Some`, with the reason, when the table of the leader has failed: this replica must not lead on.
    pub(crate) fn table_failed(&self) -> watch::Receiver<Option<String>> {
        self.table_failed.subscribe()
    }

    /// Whoever proposes to give a place in the queue up has one of these meanwhile.
    pub(crate) fn cancels(&self) -> &Semaphore {
        &self.cancels
    }

    /// Wakes the duties that wait for something in the table.
    pub(crate) fn table_changed(&self) -> &Notify {
        &self.table_changed
    }

    /// Wakes those who wait for what becomes of a session that is being judged. Not the same as a change of the table: a
    /// look at it may wake duties, and whoever looks again whenever it changed would wake itself without end.
    pub(crate) fn judged(&self) -> &Notify {
        &self.judged
    }

    /// Follows what the duties wait for.
    pub fn signals(&self) -> watch::Receiver<Signals> {
        self.signals.subscribe()
    }

    /// Answers a query from the last applied entry; not at all when the machine has failed. `clock_ms` is the running
    /// clock.
    pub fn query(&self, clock_ms: u64, query: &Query) -> Option<Reply> {
        self.begin_query(clock_ms, query).map(PendingReply::finish)
    }

    /// The same as far as it takes the lock of the state.
    pub(crate) fn begin_query(&self, clock_ms: u64, query: &Query) -> Option<PendingReply> {
        self.look(|core| planted::query(core, clock_ms, query))
    }

    /// The state as it is now, to look at; nothing when the machine has failed.
    pub(crate) fn as_it_is(&self) -> Option<holdfast_core::shard::Frozen> {
        self.look(ShardCore::freeze)
    }

    /// How much the state keeps; nothing when the machine has failed.
    pub fn footprint(&self) -> Footprint {
        self.look(ShardCore::footprint).unwrap_or_default()
    }

    /// The oldest messages of the outbox.
    pub fn outbox(&self, at_most: usize) -> Vec<(u64, OutboxMessage)> {
        let oldest = |core: &ShardCore| {
            let messages = core.outbox().messages().iter().take(at_most);
            messages.map(|(number, message)| (*number, message.clone())).collect()
        };
        self.look(oldest).unwrap_or_default()
    }

    /// Whether a reply that awaits this message may be given.
    pub fn is_settled(&self, number: u64) -> bool {
        self.look(|core| core.outbox().is_settled(number)).unwrap_or(false)
    }

    /// How far it is with what a reply awaits.
    pub(crate) fn job(&self, began: Revision) -> JobState {
        self.look(|core| core.job(began)).unwrap_or(JobState::Unknown)
    }

    fn look<T>(&self, look: impl FnOnce(&ShardCore) -> T) -> Option<T> {
        self.inner.lock().core.as_ref().map(look)
    }

    /// What is half changed goes, with everything that a leader keeps besides.
    fn fail(&self, inner: &mut Inner) {
        let clock_ms = catch(|| inner.core.as_ref().map_or(inner.last_clock_ms, ShardCore::clock_ms));
        inner.last_clock_ms = clock_ms.unwrap_or(inner.last_clock_ms);
        let (core, table) = (inner.core.take(), inner.table.take());
        // Whatever is wrong with them may show again.
        let _ = catch(move || drop(table));
        let _ = catch(move || drop(core));
        self.memory.begin_anew(&[]);
        self.table_changed.notify_waiters();
        self.judged.notify_waiters();
    }
}

fn signals_of(core: &ShardCore) -> Signals {
    let next_deadline_ms = core.next_deadline_ms();
    Signals {
        next_deadline_ms,
        is_behind: next_deadline_ms.is_some_and(|at_ms| at_ms <= core.clock_ms()),
        outbox_next: core.outbox().next_number(),
        outbox_len: core.outbox().messages().len(),
        jobs_done: core.jobs_done(),
    }
}

/// Reads a command that is to be applied by those rules.
///
/// # Errors
/// When this program does not know it, or those rules don't: nobody can apply it as all others do.
fn read(rules: Rules, bytes: &[u8]) -> Result<Command, MachineError> {
    let command: Command =
        codec::decode(bytes).map_err(|error| MachineError(format!("a command can't be read: {error}")))?;
    let needs = command.min_rules();
    if needs > rules {
        return Err(MachineError(format!("a command belongs to rules {needs}, and the shard goes by rules {rules}")));
    }
    Ok(command)
}

fn read_all(rules: Rules, commands: &[Bytes]) -> Result<Vec<Command>, MachineFailure> {
    let reading = commands.iter().zip(0..);
    reading
        .map(|(bytes, number)| read(rules, bytes).map_err(|error| failure::of_unread(number, bytes, error)))
        .collect()
}

impl Machine for ShardMachine {
    fn apply<'a>(
        &'a self,
        stamp: Stamp,
        commands: &'a [Bytes],
        replies: Replies,
    ) -> Result<Applied<'a>, MachineFailure> {
        // All are read before the first is applied, so that a replica that stops is as it was before the entry.
        let read = read_all(Rules(stamp.rules), commands)?;
        let encodes = replies == Replies::Wanted || self.observer.is_some();
        self.go_on(Entry::new(stamp, commands, read, encodes))
    }

    fn check(&self, rules: u16, command: &[u8]) -> Result<(), MachineError> {
        read(Rules(rules), command).map(|_| ())
    }

    fn go_by(&self, rules: u16) {
        let mut inner = self.inner.lock();
        inner.rules = Rules(rules);
        if let Some(table) = inner.table.as_mut() {
            table.go_by(Rules(rules));
        }
    }

    fn lead(&self, term: Option<u64>) {
        let mut inner = self.inner.lock();
        let rules = inner.rules;
        inner.table = term.zip(inner.core.as_ref()).map(|(term, core)| Table::begin(term, rules, core));
        drop(inner);
        self.table_changed.notify_waiters();
        self.judged.notify_waiters();
    }

    fn clock_ms(&self) -> u64 {
        let inner = self.inner.lock();
        inner.core.as_ref().map_or(inner.last_clock_ms, ShardCore::clock_ms)
    }

    fn freeze(&self) -> Result<Frozen, MachineError> {
        let frozen = self.look(|core| planted::to_save(core).freeze());
        let frozen = frozen.ok_or_else(|| MachineError(format!("shard {} has no state to save", self.shard)))?;
        Ok(Box::new(move || frozen.encode().into_iter().map(Bytes::from).collect()))
    }

    fn restore(&self, chunks: &[Bytes]) -> Result<(), MachineError> {
        if planted::keeps_nothing() {
            return Ok(());
        }
        let restored = match self.bounds.clone() {
            None => ShardCore::restore(self.application, &self.shard, chunks),
            Some(bounds) => ShardCore::restore_with_bounds(self.application, &self.shard, chunks, bounds),
        };
        let mut restored = restored
            .map_err(|error| MachineError(format!("the snapshot of shard {} can't be read: {error}", self.shard)))?;
        if let Some(observer) = &self.observer {
            observer.restored(&self.shard, &restored);
        }
        self.memory.begin_anew(&restored.take_recharged());
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
