//! Replays the entries of a locks shard through the core, which is the sequential model, and records the results of
//! commands and the states after apply slices, which are all that readers see.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, AcquireOutcome, BarrierCommand, CancelAttempts, CancelPermits, Command, ConditionCommand, EntryContext,
    Event, EventKind, Incarnation, Kind, LockState, LocksCommand, Metadata, Mode, NamespaceMessage, NamespaceRef,
    Owner, Path, PermitCommand, Phase, Query, Reply, Response, Rules, SessionEnd, WaitId, codec,
};

use super::asks::Asks;
use super::barriers::{BarrierMoment, Meetings};
use super::conditions::Signals;
use super::invariants::{self, Step};
use super::latches::LatchCounts;
use super::lost_holds::CancelledHold;
use super::outcomes::{CommandOutcome, Write, write_of};
use super::permits::{self, StepContext};
use super::pools::MemberHolders;
use super::rebuilds::Rebuilds;
use super::resolved_waits::ResolvedWait;
use super::shard_view::{AffectedNamespaces, Hold, ShardView};
use super::timelines::{Timeline, Timelines};
use super::twins::Twin;
use crate::apply_log::{Entry, RestoredSnapshot, digest_of};
use crate::ask_calls::call_of_reason;
use crate::history::{CALL_KEY, ObservedLock};
use crate::things::{ObservedLatch, ObservedPool, ObservedSemaphore};

/// Steps after which everything is compared, whatever a step can have changed.
const FULL_CHECK_INTERVAL_STEPS: usize = 64;

/// The life of a session.
#[derive(Debug, Clone)]
pub(crate) struct SessionSpan {
    /// The slice that opened it.
    pub(crate) opened: usize,
    pub(crate) ended: Option<SessionEndRecord>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionEndRecord {
    /// The slice that ended it.
    pub(crate) slice: usize,
    /// When a replica first applied that.
    pub(crate) at: Duration,
    pub(crate) reason: SessionEnd,
}

/// A hold that ran out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpiredHold {
    /// The call that granted it, or extended it last.
    pub(crate) call: usize,
    pub(crate) token: u64,
    /// When a replica first applied the entry that ended it.
    pub(crate) at: Duration,
}

/// The history of a locks shard. A state "at" a place is that after so many slices.
#[derive(Default)]
pub(crate) struct LocksReplay {
    pub(crate) revisions: Vec<u64>,
    /// The place after so many entries.
    pub(super) ends: Vec<usize>,
    /// The state of each lock; none if it was free.
    views: Timelines<ObservedLock>,
    pub(crate) semaphores: Timelines<ObservedSemaphore>,
    pub(crate) pools: Timelines<ObservedPool>,
    pub(crate) latches: Timelines<ObservedLatch>,
    pub(crate) barriers: Timelines<BarrierMoment>,
    /// How generations of barriers ended.
    pub(crate) meetings: Meetings,
    pub(crate) signals: Signals,
    pub(crate) asks: Asks,
    /// Which incarnation of a name was open from a place on.
    incarnations: BTreeMap<(AccountId, String), Timeline<Incarnation>>,
    /// The results of the acquires, and of the requests to release, of a call, and their slices.
    pub(crate) acquires: BTreeMap<usize, Vec<(usize, CommandOutcome)>>,
    pub(crate) writes: BTreeMap<(AccountId, String, Write), Vec<(usize, CommandOutcome)>>,
    /// Places at which an incarnation was open, and no longer open, for the first time.
    pub(crate) opened: BTreeMap<(AccountId, Incarnation), usize>,
    pub(crate) purged: BTreeMap<(AccountId, Incarnation), usize>,
    /// The events of locks.
    pub(crate) events: BTreeMap<NamespaceRef, Vec<Event>>,
    /// From which revision on no events of things were seen, by the first kind that is asked for.
    pub(super) next_events: BTreeMap<(Kind, NamespaceRef), u64>,
    pub(crate) sessions: BTreeMap<String, SessionSpan>,
    pub(crate) expiries: Vec<ExpiredHold>,
    pub(crate) cancelled_holds: Vec<CancelledHold>,
    /// Calls that wait, by their place in the queue.
    pub(super) waits: BTreeMap<WaitId, Vec<usize>>,
    /// Waits that the present slice has ended so far.
    pub(super) resolved: Vec<ResolvedWait>,
}

/// The model during the replay: the core, restored copies of it, and the current state.
struct Replayer {
    core: ShardState,
    twins: Vec<Twin>,
    view: ShardView,
    steps: usize,
    highest_token: u64,
    latches: LatchCounts,
    members: MemberHolders,
    rebuilds: Rebuilds,
    slice_commands: usize,
    /// Commands in the present slice so far.
    commands_in_slice: usize,
    replayed: LocksReplay,
}

/// Runs every command, and compares every answer and every state. Replicas apply so many commands in a slice.
pub(crate) fn replay(
    (shard, core, slice_commands): (&str, ShardState, usize),
    entries: &[Entry],
    restores: Vec<RestoredSnapshot>,
    twins: Vec<Twin>,
    findings: &mut Vec<String>,
) -> LocksReplay {
    let mut restores: Vec<(RestoredSnapshot, bool)> = restores
        .into_iter()
        .map(|restore| {
            let is_empty = restore.possible_positions.contains(&0);
            (restore, is_empty)
        })
        .collect();
    let mut watching = Replayer {
        core,
        twins,
        view: ShardView::default(),
        steps: 0,
        highest_token: 0,
        latches: LatchCounts::default(),
        members: MemberHolders::default(),
        rebuilds: Rebuilds::default(),
        slice_commands,
        commands_in_slice: 0,
        replayed: LocksReplay { revisions: vec![0], ends: vec![0], ..LocksReplay::default() },
    };
    for (at, entry) in entries.iter().enumerate() {
        let mut find = |what: String| findings.push(format!("{shard}: entry {at}: {what}"));
        watching.replay_entry(entry, &mut find);
        let state = watching.core.snapshot();
        watching.twins.iter().for_each(|twin| twin.compare_state(&state, &mut find));
        let state = digest_of(&state);
        let restores = restores.iter_mut().filter(|(restore, _)| restore.possible_positions.contains(&(at + 1)));
        restores.for_each(|(restore, is_right)| *is_right |= restore.state == state);
        if entry.state.is_some_and(|recorded| recorded != state) {
            find("[model] left another state than the model has".to_owned());
        }
        // What differs once differs on and on.
        if !findings.is_empty() {
            return watching.replayed;
        }
    }
    for (restore, _) in restores.iter().filter(|(_, is_right)| !is_right) {
        let node = restore.node + 1;
        findings.push(format!("{shard}: [model] node {node} restored a snapshot of a state that the model never had"));
    }
    watching.replayed
}

impl Replayer {
    fn replay_entry(&mut self, entry: &Entry, find: &mut dyn FnMut(String)) {
        let context =
            EntryContext { now_ms: entry.stamp.now_ms, wall_ms: entry.stamp.wall_ms, rules: Rules(entry.stamp.rules) };
        let is_due = self.core.next_deadline_ms().is_some_and(|due| due <= context.now_ms);
        self.core.advance(&context);
        self.twins.iter_mut().for_each(|twin| twin.advance(&context));
        let touched = if is_due { AffectedNamespaces::Any } else { AffectedNamespaces::Nothing };
        self.step(entry, touched, None, find);
        // Of much that is due at once an entry ends a part; the entries after it end the rest.
        if self.core.next_deadline_ms().is_none_or(|due| due > self.core.clock_ms()) {
            invariants::no_overdue_wait(&self.view, self.core.clock_ms(), find);
        }
        for (bytes, recorded) in entry.commands.iter().zip(&entry.replies) {
            let Ok(command) = codec::decode::<Command>(bytes) else {
                find("[model] has a command that can't be read".to_owned());
                continue;
            };
            let reply = match &command {
                // Leaders gather cancels: a list does what its commands do one by one.
                Command::Locks(LocksCommand::Batch(commands)) => {
                    let (mut outcomes, mut clock_ms, mut awaits) = (Vec::new(), 0, None);
                    for command in commands {
                        let command = Command::Locks(command.clone());
                        let reply = self.replay_command(entry, &context, &command, find);
                        outcomes.push(reply.outcome);
                        (clock_ms, awaits) = (reply.clock_ms, awaits.max(reply.awaits));
                    }
                    Reply { outcome: Ok(Response::Batch(outcomes)), clock_ms, awaits }
                }
                command => self.replay_command(entry, &context, command, find),
            };
            if codec::encode(&reply) != *recorded {
                find(format!("[model] {command:?} was answered {:?}, not {reply:?}", codec::decode::<Reply>(recorded)));
            }
        }
        self.rebuilds.check(&self.core, self.replayed.open_namespaces(), find);
        self.end_slice();
        let end = self.replayed.slice();
        self.replayed.ends.push(end);
    }

    /// Ends a slice: until the next one ends, readers see this state.
    fn end_slice(&mut self) {
        let at = self.replayed.slice();
        self.replayed.revisions.push(self.core.revision());
        self.replayed.record_resolved_waits(at);
        self.commands_in_slice = 0;
    }

    fn replay_command(
        &mut self,
        entry: &Entry,
        context: &EntryContext,
        command: &Command,
        find: &mut dyn FnMut(String),
    ) -> Reply {
        // Not as soon as the slice is full: it may be the last one of its entry.
        if self.commands_in_slice == self.slice_commands {
            self.end_slice();
        }
        self.commands_in_slice += 1;
        let at = self.replayed.slice();
        let reply = self.core.apply(context, command);
        self.twins.iter_mut().for_each(|twin| twin.apply(context, command, &reply, find));
        let Command::Locks(command) = command.inner() else {
            self.step(entry, AffectedNamespaces::Any, None, find);
            return reply;
        };
        self.replayed.record_command(at, command, &reply);
        let touched = AffectedNamespaces::of_command(command);
        let before = self.step(entry, touched, Some((command, &reply)), find);
        if let LocksCommand::Latch(command) = command {
            self.latches.check(command, &reply, find);
        }
        if let LocksCommand::Permit(PermitCommand::Cancel(cancel)) = command {
            self.replayed.permits_given_back((at, entry), cancel, &before, &self.view);
        }
        if let LocksCommand::Condition(ConditionCommand::Cancel(cancel)) = command {
            self.replayed.given_back((at, entry), (&cancel.namespace, &cancel.owner), &before, &self.view);
        }
        // By the first rules a cancel of the newest call ends the hold of all.
        if let LocksCommand::Cancel(cancel) | LocksCommand::CancelAttempts(CancelAttempts { cancel, .. }) = command
            && context.rules >= Rules::TWO
        {
            self.replayed.given_back((at, entry), (&cancel.namespace, &cancel.owner), &before, &self.view);
        }
        reply
    }

    /// Compares after every command, and after the clock has advanced: a grant of one command of a slice that the next
    /// one ends is not visible after both. Returns the view before.
    fn step(
        &mut self,
        entry: &Entry,
        touched: AffectedNamespaces<'_>,
        done: Option<(&LocksCommand, &Reply)>,
        find: &mut dyn FnMut(String),
    ) -> ShardView {
        let at = self.replayed.slice();
        self.steps += 1;
        // Sometimes everything else is compared too.
        let touched =
            if self.steps.is_multiple_of(FULL_CHECK_INTERVAL_STEPS) { AffectedNamespaces::Any } else { touched };
        let (core, replayed) = (&mut self.core, &mut self.replayed);
        let granted = done.and_then(|(command, reply)| invariants::direct_grant(core, command, reply));
        let (command, reply) = done.unzip();
        let effects = core.take_effects();
        self.twins.iter_mut().for_each(|twin| twin.compare_effects(&effects, find));
        effects.iter().for_each(|effect| replayed.record_effect(at, entry.applied_at, effect));
        if touched == AffectedNamespaces::Any {
            replayed.record_open_incarnations(at + 1, core);
        }
        let (before, after) = (&self.view, self.view.next(core, replayed.open_namespaces(), touched));
        let events = replayed.poll_events(core, touched);
        let held_events = replayed.poll_events_of(&[Kind::Pool, Kind::Semaphore, Kind::Request], core, touched);
        self.members.check(&held_events, find);
        let barrier_events = replayed.poll_events_of(&[Kind::Barrier], core, touched);
        let (granted, highest_token) = (granted.as_slice(), self.highest_token);
        let step = Step { before, after: &after, effects: &effects, granted, events: &events, highest_token };
        invariants::check(&step, core.clock_ms(), find);
        let has_session = |id: &str| core.sessions().any(|session| session.session_id == id);
        let (clock_ms, is_settled) = (core.clock_ms(), !core.has_backlog());
        let context = StepContext { clock_ms, is_settled, command, has_session: &has_session };
        permits::check(&step, &context, find);
        replayed.signals.check(&step, &context, reply, find);
        replayed.asks.check(&step, (&context, reply), &held_events, entry.applied_at, find);
        replayed.meetings.check(at + 1, &step, &context, (&*core, &barrier_events), find);
        self.highest_token = invariants::highest_token(&step);
        replayed.record_changes(at + 1, before, &after);
        replayed.record_expired(before, &events, entry.applied_at);
        if command.is_none() {
            let at = entry.applied_at;
            let expired = permits::expired(before, &after, clock_ms).into_iter();
            replayed.expiries.extend(expired.map(|(call, token)| ExpiredHold { call, token, at }));
        }
        std::mem::replace(&mut self.view, after)
    }
}

impl LocksReplay {
    /// The number of the slice that is replayed.
    fn slice(&self) -> usize {
        self.revisions.len() - 1
    }

    /// Returns the state that a lock must have had at a place.
    pub(crate) fn view(&self, place: usize, life: &NamespaceRef, path: &Path) -> ObservedLock {
        self.views.at(place, life, path).cloned().unwrap_or_else(|| self.free_lock(place, path))
    }

    /// A free lock.
    pub(super) fn free_lock(&self, place: usize, path: &Path) -> ObservedLock {
        let (path, revision) = (path.clone(), self.revisions[place]);
        ObservedLock { path, state: LockState::Unlocked, revision, holders: Vec::new() }
    }

    /// The open life of a name at a place.
    pub(crate) fn open_incarnation(&self, place: usize, account: AccountId, name: &str) -> Option<NamespaceRef> {
        let (_, life) = self.incarnation_change_before(place, account, name)?;
        life.map(|incarnation| NamespaceRef { account, name: name.to_owned(), incarnation })
    }

    /// From which place on the life that a name has at a place is open, or none is.
    pub(crate) fn incarnation_since(&self, place: usize, account: AccountId, name: &str) -> usize {
        self.incarnation_change_before(place, account, name).map_or(0, |(from, _)| from)
    }

    fn incarnation_change_before(
        &self,
        place: usize,
        account: AccountId,
        name: &str,
    ) -> Option<(usize, Option<Incarnation>)> {
        let changes = self.incarnations.get(&(account, name.to_owned()))?;
        changes[..changes.partition_point(|(from, _)| *from <= place)].last().copied()
    }

    pub(super) fn open_namespaces(&self) -> impl Iterator<Item = NamespaceRef> {
        self.incarnations.iter().filter_map(|((account, name), changes)| {
            let (_, life) = changes.last()?;
            Some(NamespaceRef { account: *account, name: name.clone(), incarnation: (*life)? })
        })
    }

    fn record_command(&mut self, at: usize, command: &LocksCommand, reply: &Reply) {
        let metadata = match command {
            LocksCommand::Permit(PermitCommand::Acquire(acquire)) => Some(&acquire.metadata),
            LocksCommand::Barrier(BarrierCommand::Arrive(arrive)) => Some(&arrive.metadata),
            LocksCommand::Condition(ConditionCommand::Await(awaits)) => awaits.metadata.as_ref(),
            command => command.as_acquire().map(|(acquire, _)| &acquire.metadata),
        };
        if let Some(metadata) = metadata {
            let Some(call) = call_of(metadata) else { return };
            if let Ok(
                Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }
                | Response::PermitsAcquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }
                | Response::Awaited { outcome: AcquireOutcome::Enqueued(enqueued), .. },
            ) = &reply.outcome
            {
                self.waits.entry(enqueued.wait).or_default().push(call);
                return;
            }
            self.acquires.entry(call).or_default().push((at, CommandOutcome::of_reply(reply)));
            return;
        }
        match command {
            LocksCommand::AskRelease(ask) => {
                if let Some(call) = call_of_reason(&ask.reason) {
                    self.acquires.entry(call).or_default().push((at, CommandOutcome::of_reply(reply)));
                }
            }
            LocksCommand::Deliver {
                message:
                    NamespaceMessage::Open { namespace, .. }
                    | NamespaceMessage::Open2 { namespace, .. }
                    | NamespaceMessage::Open3 { namespace, .. },
                ..
            } => {
                self.opened.entry((namespace.account, namespace.incarnation)).or_insert(at + 1);
                self.incarnations.entry((namespace.account, namespace.name.clone())).or_default();
            }
            LocksCommand::Deliver { message: NamespaceMessage::Purge { namespace }, .. } => {
                self.purged.entry((namespace.account, namespace.incarnation)).or_insert(at + 1);
            }
            command => {
                if let Some((namespace, write)) = write_of(command) {
                    let key = (namespace.account, namespace.name.clone(), write);
                    self.writes.entry(key).or_default().push((at, CommandOutcome::of_reply(reply)));
                }
            }
        }
    }

    /// Notes which incarnations are open at a place.
    fn record_open_incarnations(&mut self, place: usize, core: &ShardState) {
        for ((account, name), changes) in &mut self.incarnations {
            let candidates = self.opened.keys().filter(|(of, _)| of == account).map(|(_, life)| *life);
            let is_open = |incarnation: &Incarnation| {
                let namespace = NamespaceRef { account: *account, name: name.clone(), incarnation: *incarnation };
                let query = Query::Usage { namespace };
                core.query(0, &query).outcome.is_ok()
            };
            let last = changes.last().and_then(|(_, life)| *life);
            let open = match last.filter(is_open) {
                Some(same) => Some(same),
                None => candidates.rev().find(is_open),
            };
            if changes.is_empty() || last != open {
                changes.push((place, open));
            }
        }
    }

    /// Holds of an owner that are gone, or weaker, after a call of it was given up.
    fn given_back(
        &mut self,
        (at, entry): (usize, &Entry),
        (life, owner): (&NamespaceRef, &Owner),
        before: &ShardView,
        after: &ShardView,
    ) {
        let is_own = |hold: &Hold<'_>| hold.view.owner == *owner && hold.view.phase == Phase::Held;
        for hold in before.holds(life).filter(is_own) {
            let is_kept = |kept: Hold<'_>| kept.path == hold.path && kept.view.mode >= hold.view.mode;
            if !after.holds(life).filter(is_own).any(is_kept) {
                self.cancelled_holds.push(CancelledHold {
                    slice: at,
                    at: entry.applied_at,
                    namespace: life.clone(),
                    owner: owner.clone(),
                    path: hold.path.clone(),
                    token: hold.view.fencing_token,
                    mode: hold.view.mode,
                });
            }
        }
    }

    /// Permits or members that are gone after a call for them was given up.
    fn permits_given_back(
        &mut self,
        (at, entry): (usize, &Entry),
        cancel: &CancelPermits,
        before: &ShardView,
        after: &ShardView,
    ) {
        for holder in permits::given_back(cancel, before, after) {
            self.cancelled_holds.push(CancelledHold {
                slice: at,
                at: entry.applied_at,
                namespace: cancel.namespace.clone(),
                owner: holder.owner.clone(),
                path: cancel.path.clone(),
                token: holder.fencing_token,
                mode: Mode::Write,
            });
        }
    }

    fn record_expired(&mut self, before: &ShardView, events: &[(NamespaceRef, Event)], at: Duration) {
        for (life, event) in events.iter().filter(|(_, event)| event.kind == EventKind::Expired) {
            let is_meant = |hold: &Hold<'_>| {
                let has_path = event.claims.iter().any(|claim| claim.path == *hold.path);
                has_path && Some(hold.view.fencing_token) == event.fencing_token
            };
            let call = before.holds(life).find(is_meant).and_then(|hold| call_of(&hold.view.metadata));
            if let (Some(call), Some(token), Owner::Process(_)) = (call, event.fencing_token, &event.owner) {
                self.expiries.push(ExpiredHold { call, token, at });
            }
        }
    }

    fn record_changes(&mut self, place: usize, before: &ShardView, after: &ShardView) {
        for life in after.changed(before) {
            self.views.record(place, life, &before.observed_locks(life), &after.observed_locks(life));
            self.semaphores.record(place, life, &before.observed_semaphores(life), &after.observed_semaphores(life));
            self.pools.record(place, life, &before.observed_pools(life), &after.observed_pools(life));
            self.latches.record(place, life, &before.observed_latches(life), &after.observed_latches(life));
            self.barriers.record(place, life, &before.observed_barriers(life), &after.observed_barriers(life));
        }
    }
}

/// Returns the call that an acquire names.
pub(super) fn call_of(metadata: &Metadata) -> Option<usize> {
    metadata.get(CALL_KEY)?.parse().ok()
}
