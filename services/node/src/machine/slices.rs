//! Applies an entry in apply slices. The state lock is released after each, so that no query waits for a long entry.
//! Their boundaries do not affect results: each command runs as a whole, and every reader sees it done or not done. A
//! batch is as many commands as are in it.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::vec;

use bytes::Bytes;
use holdfast_clock::thread_cpu_time;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Command, CommandError, EntryContext, LocksCommand, NamespaceRef, Reply, Response, Rules, codec,
};
use holdfast_mutations::{Mutation, is_enabled, maybe_panic};
use holdfast_replication::{Applied, ApplyFailure, ApplyStep, EntryHeader};
use holdfast_supervise::catch_panic;
use tokio::time::{Duration, Instant};

use super::exceptions::SectionExceptions;
use super::leader_state::AppliedLeaderState;
use super::{Inner, ShardMachine, signals_of};
use crate::leader::{LeaderState, release};
use crate::run_markers::{FatalStep, StepMarkers};
use crate::{failure, mutations};

/// Commands in an apply slice, unless tests set fewer.
pub const MAX_SLICE_COMMANDS: usize = 128;
/// Effects passed to the leader state, and items removed from indexes, in an apply slice: more than its commands
/// produce, except for the end of a namespace.
const MAX_SLICE_EFFECTS: usize = 1_024;
/// A slice starts no further command that would end after this time, and passes no further effect then.
const MAX_SLICE_TIME: Duration = Duration::from_millis(1);
/// The time that a unit of a command takes, to see whether a slice has time for one: a command that takes as long as a
/// slice begins its own.
const UNIT_TIME: Duration = Duration::from_nanos(250);

/// The processor time of one in so many slices is measured: to read it is a system call, two for each slice.
const SLICES_PER_MEASURE: u8 = 16;
/// After a slice that took so long, the next one is measured in any case.
const LONG_SLICE: Duration = Duration::from_micros(250);

/// Observes what replicas apply, as they apply it. For checks of a whole cluster; it must not call back.
pub trait ApplyObserver: Send + Sync + 'static {
    /// A replica's state was initialized, empty.
    fn initialized(&self, shard: &str, state: &ShardState);
    /// An entry was applied: its commands, one reply for each, and the state after it.
    fn applied(&self, shard: &str, header: EntryHeader, commands: &[Bytes], replies: &[Bytes], state: &ShardState);
    /// A slice of an entry was applied that is not its last. So many commands are done, those of lists one by one.
    fn progressed(&self, _shard: &str, _header: EntryHeader, _commands: usize) {}
    /// The state was replaced by that of a snapshot.
    fn restored(&self, shard: &str, state: &ShardState);
}

/// An entry and how far it is applied.
pub(super) struct Entry<'a> {
    header: EntryHeader,
    commands: &'a [Bytes],
    /// The remaining commands.
    remaining: vec::IntoIter<Command>,
    /// The batch among them that is applied in part.
    batch: Option<PartialBatch>,
    /// Of the current command. Known on the leader only, since only a leader forms entries.
    expected: Option<ExpectedCost>,
    /// Whether replies are encoded.
    encode_replies: bool,
    /// Namespaces that are set aside before the clock advances.
    left_out: Vec<NamespaceRef>,
    /// How much is left out.
    exceptions: u32,
    replies: Vec<Bytes>,
    /// Commands that are done, those of batches one by one.
    done: usize,
    has_advanced: bool,
    /// The current step.
    step: ApplyStep,
    /// Where each step is noted, and as what.
    noted: Option<(&'a StepMarkers, FatalStep)>,
    /// True when every command is applied and every effect processed.
    is_done: bool,
}

/// What is known of the cost of a command before it.
struct ExpectedCost {
    account: AccountId,
    kind: u8,
    min_units: u64,
    /// The units spent before it.
    before: u64,
}

impl<'a> Entry<'a> {
    pub(super) fn new(
        header: EntryHeader,
        commands: &'a [Bytes],
        remaining: Vec<Command>,
        encode_replies: bool,
    ) -> Self {
        let replies = Vec::with_capacity(remaining.len());
        let remaining = remaining.into_iter();
        Self {
            header,
            commands,
            remaining,
            batch: None,
            expected: None,
            encode_replies,
            left_out: Vec::new(),
            exceptions: 0,
            replies,
            done: 0,
            has_advanced: false,
            step: ApplyStep::Expiry,
            noted: None,
            is_done: false,
        }
    }

    /// Leaves this out. Commands that are left out are replaced already.
    pub(super) fn without(self, exceptions: SectionExceptions) -> Self {
        Self { exceptions: exceptions.count(), left_out: exceptions.namespaces, ..self }
    }

    /// Begins the next step.
    fn begin_step(&mut self, step: ApplyStep) {
        self.step = step;
        if let Some((steps, noted)) = &mut self.noted {
            noted.step = step;
            steps.record(noted);
        }
    }

    fn has_commands(&self) -> bool {
        self.batch.is_some() || self.remaining.len() > 0
    }

    /// Returns the minimum cost of the next command in units; `None` if there is none.
    fn next_min_units(&self) -> Option<u64> {
        if let Some(batch) = &self.batch {
            return batch.remaining.as_slice().first().map(LocksCommand::min_units);
        }
        self.remaining.as_slice().first().map(|next| match next {
            // It is applied in part.
            Command::Locks(LocksCommand::Batch(commands)) => commands.first().map_or(0, LocksCommand::min_units),
            next => next.min_units(),
        })
    }

    /// Takes the next command, or the next one of the current batch.
    fn next_command(&mut self, core: &ShardState, is_leader: bool) -> Option<Command> {
        if let Some(batch) = &mut self.batch {
            return batch.remaining.next().map(Command::Locks);
        }
        let command = self.remaining.next()?;
        self.begin_step(ApplyStep::Command(u32::try_from(self.replies.len()).unwrap_or(u32::MAX)));
        self.expected = command.account().filter(|_| is_leader).map(|account| {
            let (kind, min_units) = (command.cost_kind() as u8, command.min_units());
            ExpectedCost { account, kind, min_units, before: core.units() }
        });
        match command {
            Command::Locks(LocksCommand::Batch(commands)) if commands.len() > 1 => {
                let mut batch = PartialBatch::new(commands);
                let first = batch.remaining.next().map(Command::Locks);
                self.batch = Some(batch);
                first
            }
            command => Some(command),
        }
    }

    /// Adds the reply of a command. A batch has one reply, after its last command.
    fn add_reply(&mut self, reply: Reply) {
        let reply = match self.batch.take() {
            None => reply,
            Some(mut batch) => {
                batch.add(reply.outcome, reply.awaits);
                if batch.remaining.len() > 0 {
                    self.batch = Some(batch);
                    return;
                }
                Reply { outcome: Ok(Response::Batch(batch.outcomes)), clock_ms: reply.clock_ms, awaits: batch.awaits }
            }
        };
        self.replies.push(if self.encode_replies { codec::encode(&reply).into() } else { Bytes::new() });
    }
}

/// A batch that is applied in part. Each of its commands has an outcome of its own, so it needs no step of its own.
struct PartialBatch {
    remaining: vec::IntoIter<LocksCommand>,
    outcomes: Vec<Result<Response, CommandError>>,
    /// What the latest of its jobs awaits.
    awaits: Option<u64>,
}

impl PartialBatch {
    fn new(commands: Vec<LocksCommand>) -> Self {
        let outcomes = Vec::with_capacity(commands.len());
        Self { remaining: commands.into_iter(), outcomes, awaits: None }
    }

    fn add(&mut self, outcome: Result<Response, CommandError>, awaits: Option<u64>) {
        self.outcomes.push(outcome);
        // Within one session, the sweep that began last finishes last.
        self.awaits = self.awaits.max(awaits);
    }
}

impl ShardMachine {
    /// Applies so many commands in a slice, at least one.
    pub(crate) fn with_slices(mut self, commands: usize) -> Self {
        self.slice_commands = commands.max(1);
        self
    }

    /// Applies a whole section while the node applies no other, and notes each step before it. `left_out` is how much
    /// is left out of it.
    pub(super) fn apply_marked<'a>(
        &'a self,
        mut entry: Entry<'a>,
        steps: &'a StepMarkers,
        left_out: u32,
    ) -> Result<Applied<'a>, ApplyFailure> {
        let EntryHeader { term, index, .. } = entry.header;
        let step = FatalStep { shard: self.shard.clone(), term, index, step: entry.step, left_out };
        entry.noted = Some((steps, step));
        let _turn = steps.turn();
        let mut applied = self.apply_next_slice(entry);
        while let Ok(Applied::Part(rest)) = applied {
            applied = rest();
        }
        steps.clear();
        applied
    }

    /// Applies the next slice.
    pub(super) fn apply_next_slice<'a>(&'a self, mut entry: Entry<'a>) -> Result<Applied<'a>, ApplyFailure> {
        let mut inner = self.inner.lock();
        let (began, cpu_time) = (Instant::now(), (inner.unmeasured_slices == 0).then(thread_cpu_time));
        inner.drop_takeover();
        let Inner { core, leader_state, .. } = &mut *inner;
        let Some(core) = core else { return Err(failure::already_failed()) };
        let mut table = AppliedLeaderState { state: leader_state.as_mut(), panicked: None };
        let applied = catch_panic(|| self.apply_slice(core, &mut table, &mut entry, began));
        let released = table.update(LeaderState::take_released).unwrap_or_default();
        let garbage = table.update(LeaderState::take_garbage).unwrap_or_default();
        let leader_state_panic = table.panicked;
        match applied {
            Ok(()) => {
                let (signals, purged, recharged) = (signals_of(core), core.take_purged(), core.take_changed_charges());
                if let Some(panicked) = leader_state_panic {
                    self.drop_leader_state(&mut inner, &panicked);
                }
                let took = began.elapsed();
                inner.unmeasured_slices = match inner.unmeasured_slices {
                    _ if took >= LONG_SLICE => 0,
                    0 => SLICES_PER_MEASURE - 1,
                    left => left - 1,
                };
                drop(inner);
                self.slice_seconds.record(took);
                if let Some(before) = cpu_time {
                    self.slice_cpu_seconds.record(thread_cpu_time().saturating_sub(before));
                }
                release(released);
                if !(purged.is_empty() && garbage.is_empty()) {
                    free_in_background((purged, garbage));
                }
                self.memory.update(&recharged);
                self.update_signals(signals);
                if entry.is_done {
                    return Ok(Applied::Done(entry.replies));
                }
                Ok(Applied::Part(Box::new(move || self.apply_next_slice(entry))))
            }
            Err(_) if is_enabled(Mutation::PanicInApply) => Ok(Applied::Done(vec![Bytes::new(); entry.commands.len()])),
            Err(panicked) => {
                // The state is half changed, but who was being served is still there.
                let namespace = catch_panic(|| core.namespace_in_work()).unwrap_or_default();
                self.fail(&mut inner);
                Err(failure::from_panic(entry.step, entry.commands, namespace, panicked))
            }
        }
    }

    fn apply_slice(
        &self,
        core: &mut ShardState,
        table: &mut AppliedLeaderState<'_>,
        entry: &mut Entry<'_>,
        began: Instant,
    ) {
        let EntryHeader { rules, now_ms, wall_ms, .. } = entry.header;
        let context = EntryContext { now_ms, wall_ms, rules: Rules(rules) };
        // Further commands run only after all effects of earlier ones are processed.
        let commands = if core.has_effects() { 0 } else { self.slice_commands };
        let (mut has_done_some, mut costs) = (false, Vec::new());
        if !entry.has_advanced {
            entry.begin_step(ApplyStep::Expiry);
            entry.left_out.iter().for_each(|namespace| core.quarantine(namespace));
            // Replicas may have applied the section with fewer exceptions, and have answered later ones, each time.
            (0..entry.exceptions).for_each(|_| core.advance_numbers(now_ms));
            maybe_panic("apply");
            core.advance(&context);
            (entry.has_advanced, has_done_some) = (true, true);
        }
        for _ in 0..commands {
            if has_done_some && entry.next_min_units().is_some_and(|units| !has_time_for(began, units)) {
                break;
            }
            let Some(command) = entry.next_command(core, table.is_some()) else { break };
            entry.done += 1;
            let reply = apply_command(core, table, &context, command, entry.encode_replies);
            entry.add_reply(reply);
            if entry.batch.is_none()
                && let Some(expected) = entry.expected.take()
            {
                let units = core.units() - expected.before;
                costs.push((expected, units));
            }
            has_done_some = true;
        }
        if !costs.is_empty() {
            let mut known = self.costs.lock();
            for (ExpectedCost { account, kind, min_units, .. }, units) in costs {
                known.record((account, kind), min_units, units, began);
            }
        }
        pass_effects(core, table, &context, began);
        // Also after a panic in it: the state that it is built again from has what it was not told.
        if !table.is_some() {
            core.drop_effects();
        }
        entry.is_done = !entry.has_commands() && !core.has_effects() && !core.purge_indexes(MAX_SLICE_EFFECTS);
        match &self.observer {
            Some(observer) if entry.is_done => {
                observer.applied(&self.shard, entry.header, entry.commands, &entry.replies, core);
            }
            Some(observer) => observer.progressed(&self.shard, entry.header, entry.done),
            None => {}
        }
        if table.update(LeaderState::needs_wakeup) == Some(true) {
            self.leader_state_changed.notify_waiters();
        }
    }
}

/// Returns whether a slice has time for a command of so many units.
fn has_time_for(began: Instant, min_units: u64) -> bool {
    let units = u32::try_from(min_units).unwrap_or(u32::MAX);
    began.elapsed().saturating_add(UNIT_TIME.saturating_mul(units)) < MAX_SLICE_TIME
}

/// Passes effects to the leader state, if there is one: under the same lock, so that it lags by at most the effects of
/// the next slice.
fn pass_effects(core: &mut ShardState, table: &mut AppliedLeaderState<'_>, context: &EntryContext, began: Instant) {
    table.update(|table| table.begin_entry(context));
    let mut passed = 0;
    while table.is_some() && passed < MAX_SLICE_EFFECTS {
        // One by one: the views in a single one may take a third of a slice.
        let (effects, core) = (core.take_effects_up_to(1), &*core);
        if effects.is_empty() {
            break;
        }
        passed += effects.len();
        table.update(|table| effects.into_iter().for_each(|effect| table.on_entry_effect(core, effect)));
        if core.has_effects() && began.elapsed() >= MAX_SLICE_TIME {
            break;
        }
    }
    table.update(|table| table.settle_tables(core, context));
}

/// Frees what may be much on an idle thread. A runtime task would not do: under simulated time, time stands still while
/// a task blocks.
#[expect(clippy::disallowed_methods, reason = "if the thread panics, all further data is freed where it is sent")]
pub(super) fn free_in_background(freed: impl Send + 'static) {
    static FREE_SENDER: LazyLock<Option<Sender<Box<dyn Send>>>> = LazyLock::new(|| {
        let (sender, freed) = channel::<Box<dyn Send>>();
        let thread = Builder::new().name("purged".into()).spawn(move || freed.into_iter().for_each(drop));
        thread.ok().map(|_| sender)
    });
    if let Some(sender) = &*FREE_SENDER {
        // Data that can't be sent is freed here.
        drop(sender.send(Box::new(freed)));
    }
}

/// Returns the reply to one command, without views unless they are wanted.
fn apply_command(
    core: &mut ShardState,
    table: &mut AppliedLeaderState<'_>,
    context: &EntryContext,
    command: Command,
    with_views: bool,
) -> Reply {
    maybe_panic("apply");
    let command = mutations::command(core, command);
    let reply = if with_views { core.apply(context, &command) } else { core.apply_without_views(context, &command) };
    table.update(|table| {
        table.on_reply(&command, &reply);
        table.on_forced_end(core, context, &command, &reply);
    });
    reply
}
