//! Sweeps: commands that end much state at once. A sweep ends everything of an owner or a session, all holds of a path,
//! everything of owners that are not alive, or everything that a client does not report.
//!
//! If the work exceeds a slice, a command begins it, and each following entry continues it: first arrivals at barriers,
//! then holds of semaphores and waits for them, then waits for locks in queue order, then holds of locks in path order,
//! then sessions. A sweep ends only state that existed when it began. Until it is finished:
//! - holds of a released owner and of a deleted path count as over, and queued requests of the owner are not granted; a
//!   waiter for the path is granted it when its last hold is gone;
//! - a namespace under reset grants nothing at all; its holds stay valid until the sweep ends them;
//! - a session whose client reports its state is granted nothing.
//!
//! Other requests for this state have to be retried; releases, extensions and everything else proceed.

use std::collections::VecDeque;
use std::ops::Bound;

use holdfast_primitives::barriers::ArrivalCursor;
use holdfast_primitives::permits::{EndedPermits, PermitCursor};
use serde::{Deserialize, Serialize};

use super::bit_set::BitSet;
use super::conditions::AwaitsOf;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{OwnerId, OwnerName};
use super::queue::QueuePosition;
use super::sessions::Session;
use super::target::Target;
use super::tree::{NodeId, Tree};
use super::txn::NamespaceTxn;
use crate::{CommandError, JobState, Path, Reason, Revision, SessionEnd, SessionNumber, WaitId};

/// Maximum number of concurrent sweeps in a namespace.
pub(super) const MAX_SWEEPS: usize = 16;
/// Maximum number of finished sweeps that are remembered.
const MAX_FINISHED: usize = 1_024;

/// The target and the progress of a sweep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sweep {
    pub(super) target: Target,
    /// The shard clock at which it began.
    pub(super) since_ms: u64,
    /// All waits up to this position are done; the flag tells whether that position is an upgrade's.
    after_wait: Option<(u64, bool)>,
    after_path: Option<Path>,
    after_session: Option<String>,
    pub(super) ended_holds: u64,
    pub(super) ended_waits: u64,
    /// Processes that are old enough. They are determined before anything ends, because ending their state makes them
    /// appear younger. No new process enters the namespace until the sweep is finished. A snapshot stores them in
    /// separate items.
    #[serde(skip)]
    pub(super) old_processes: BitSet,
    /// Whether all of these processes are known.
    old_processes_known: bool,
    /// How far the search through the holds and waits of semaphores has come, and whether it is done.
    after_permits: Option<PermitCursor>,
    permits_done: bool,
    /// The same of arrivals at barriers.
    after_arrival: Option<ArrivalCursor>,
    arrivals_done: bool,
    /// All awaits up to this one are done.
    after_await: Option<WaitId>,
    /// The node of the path in the tree. Later holds there are newer than this sweep.
    #[serde(skip)]
    pub(super) node: Option<NodeId>,
}

impl Sweep {
    fn new(target: Target, since_ms: u64) -> Self {
        Self {
            target,
            since_ms,
            after_wait: None,
            after_path: None,
            after_session: None,
            ended_holds: 0,
            ended_waits: 0,
            old_processes: BitSet::default(),
            old_processes_known: false,
            after_permits: None,
            permits_done: false,
            after_arrival: None,
            arrivals_done: false,
            after_await: None,
            node: None,
        }
    }

    pub(super) fn find_node(&mut self, tree: &Tree) {
        self.node = if let Target::Path(path) = &self.target { tree.find(path) } else { None };
    }

    pub(super) fn is_old(&self, owner: OwnerId) -> bool {
        self.old_processes.contains(owner.0 as usize)
    }

    /// Returns whether only processes that are old enough are covered.
    pub(super) fn has_age_limit(&self) -> bool {
        matches!(self.target, Target::Reset { before: Some(_), .. })
    }

    fn resume_position(&self) -> Option<QueuePosition> {
        self.after_wait.map(|(wait, upgrade)| QueuePosition::of(WaitId(wait), upgrade))
    }

    fn set_progress(&mut self, position: Option<QueuePosition>) {
        self.after_wait = position.map(|position| (position.wait().0, position.is_upgrade())).or(self.after_wait);
    }

    pub(super) fn finished_state(&self) -> JobState {
        JobState::Done { ended_holds: self.ended_holds, ended_waits: self.ended_waits }
    }
}

/// Recently finished sweeps. Not part of the state: the replica that ran a sweep replies to queries about it.
#[derive(Clone, Debug, Default)]
pub(super) struct FinishedSweeps {
    /// The revision at which each began, and what it ended.
    recent: VecDeque<(Revision, JobState)>,
    pub(super) count: u64,
}

impl FinishedSweeps {
    pub(super) fn push(&mut self, began: Revision, done: JobState) {
        if self.recent.len() == MAX_FINISHED {
            self.recent.pop_front();
        }
        self.recent.push_back((began, done));
        self.count = self.count.saturating_add(1);
    }

    /// Adds the deletion of a semaphore. Its caller is not told what it ended.
    pub(super) fn push_deletion(&mut self, began: Revision) {
        self.push(began, JobState::Done { ended_holds: 0, ended_waits: 0 });
    }

    pub(super) fn get(&self, began: Revision) -> Option<JobState> {
        self.recent.iter().rev().find(|(number, _)| *number == began).map(|(_, done)| *done)
    }
}

impl NamespaceTxn<'_> {
    /// Begins a sweep, unless an equal one is in progress. The response to the command has to wait for it.
    pub(super) fn begin_sweep(&mut self, target: Target) -> Result<(), CommandError> {
        if self.await_sweep(|there| *there == target)
            && !self.awaits.is_some_and(|began| self.has_newer(&target, began))
        {
            return Ok(());
        }
        *self.awaits = None;
        if self.ns.sweeps.len() >= MAX_SWEEPS || (target.is_reset() && self.ns.is_frozen()) {
            return Err(CommandError::Busy("too much is being released here at once".into()));
        }
        let began = self.common.next_revision();
        let mut sweep = Sweep::new(target, self.common.clock_ms);
        sweep.find_node(&self.ns.tree);
        self.ns.sweeps.insert(began, sweep);
        *self.awaits = Some(began);
        self.update_jobs();
        Ok(())
    }

    /// Returns whether the target covers state that is newer than the sweep that began at `began`.
    fn has_newer(&self, target: &Target, began: Revision) -> bool {
        match target {
            Target::Path(path) => {
                let node = self.ns.tree.find(path);
                node.is_some_and(|node| self.ns.tree.get(node).holds.as_slice().iter().any(|hold| hold.token > began))
            }
            Target::Reset { .. } => {
                let newer = self.sessions.range((Bound::Excluded(began), Bound::Unbounded));
                newer.into_iter().any(|(number, (slot, session_id))| {
                    *slot == self.slot && target.covers_session(session_id, *number)
                })
            }
            // These targets get no new state meanwhile.
            Target::Owner(..) | Target::Session(_) | Target::Unlisted(_) => false,
        }
    }

    /// Makes the response wait for the last matching sweep in progress. Returns whether there is one.
    pub(super) fn await_sweep(&mut self, is_it: impl Fn(&Target) -> bool) -> bool {
        let mut sweeps = self.ns.sweeps.iter().rev();
        *self.awaits = sweeps.find(|(_, sweep)| is_it(&sweep.target)).map(|(began, _)| *began);
        self.awaits.is_some()
    }

    /// Runs one slice of a sweep. It is finished when some of the slice is left.
    pub(super) fn sweep(&mut self, began: Revision) {
        let Some(mut sweep) = self.ns.sweeps.remove(&began) else { return };
        if self.find_old_processes(began, &mut sweep) {
            // First, because a process may be old by its locks, whose end removes it.
            self.sweep_arrivals(began, &mut sweep);
            self.sweep_permits(began, &mut sweep);
            self.sweep_waits(began, &mut sweep);
            self.sweep_awaits(began, &mut sweep);
            self.sweep_holds(began, &mut sweep);
            self.sweep_sessions(began, &mut sweep);
        }
        if self.budget.ends > 0 && self.budget.visits > 0 {
            self.finished.push(began, sweep.finished_state());
            if let Target::Unlisted(number) = sweep.target {
                self.end_report(number);
            }
            // Requests that the freeze blocked can be granted now.
            self.ns.has_pending_grants &= !sweep.target.is_reset();
        } else {
            self.ns.sweeps.insert(began, sweep);
        }
    }

    /// Finds the processes that are old enough, by their waits and holds. Returns whether all were found.
    fn find_old_processes(&mut self, began: Revision, sweep: &mut Sweep) -> bool {
        let Target::Reset { before: Some(before), .. } = sweep.target else { return true };
        if sweep.old_processes_known {
            return true;
        }
        let (mut old, target) = (std::mem::take(&mut sweep.old_processes), &sweep.target);
        let mut look = |ns: &Namespace, owner: OwnerId, since: Revision| {
            let name = ns.owners.name(owner);
            let since = match name {
                OwnerName::Process(id) => since.min(ns.oldest_elsewhere(id.as_str()).unwrap_or(since)),
                OwnerName::Session(_) => since,
            };
            if since < before && matches!(name, OwnerName::Process(_)) && target.covers(name) {
                old.insert(owner.0 as usize);
            }
            false
        };
        let waits = self.next_waits(sweep.resume_position(), Some(began), |ns, position| {
            look(ns, ns.waiting(position).owner, position.wait().0)
        });
        let (_, reached) = self.next_awaits(AwaitsOf::All, sweep.after_await, |ns, wait| {
            let is_there = ns.conditions.get(wait).filter(|_| wait.0 < began);
            is_there.is_some_and(|awaits| look(ns, awaits.owner, wait.0))
        });
        sweep.after_await = reached.or(sweep.after_await);
        let holds = self.next_holds(sweep.after_path.as_ref(), |ns, _, hold| look(ns, hold.owner, hold.token));
        sweep.old_processes = old;
        sweep.set_progress(waits.scanned_to);
        sweep.after_path = holds.scanned_to.or(sweep.after_path.take());
        sweep.old_processes_known = self.budget.visits > 0;
        if sweep.old_processes_known {
            (sweep.after_wait, sweep.after_path, sweep.after_await) = (None, None, None);
        }
        sweep.old_processes_known
    }

    fn sweep_waits(&mut self, began: Revision, sweep: &mut Sweep) {
        let goes = |ns: &Namespace, position| ns.sweep_covers_wait(began, sweep, position);
        let waits = match self.owners_of_waits(&sweep.target) {
            Some(owners) => self.next_waits_of(&owners, goes),
            None => self.next_waits(sweep.resume_position(), Some(began), goes),
        };
        sweep.set_progress(waits.scanned_to);
        for position in waits.found {
            sweep.ended_waits += u64::from(self.end_wait_if_present(position));
        }
    }

    fn sweep_awaits(&mut self, began: Revision, sweep: &mut Sweep) {
        let of = match &sweep.target {
            Target::Path(_) => return,
            Target::Owner(owner, number) => match self.ns.owner_of(owner, *number) {
                Some(owner) => AwaitsOf::Owner(owner),
                None => return,
            },
            Target::Session(number) | Target::Unlisted(number) => AwaitsOf::Session(*number),
            Target::Reset { .. } => AwaitsOf::All,
        };
        let goes = |ns: &Namespace, wait| ns.sweep_covers_await(began, sweep, wait);
        let (found, reached) = self.next_awaits(of, sweep.after_await, goes);
        sweep.after_await = reached.or(sweep.after_await);
        sweep.ended_waits += found.len() as u64;
        found.into_iter().for_each(|wait| self.end_await(wait, Reason::Ended));
    }

    fn sweep_holds(&mut self, began: Revision, sweep: &mut Sweep) {
        // The owners may be many: they are listed only for a slice that ends holds.
        if self.budget.ends == 0 {
            return;
        }
        let goes = |ns: &Namespace, node, hold: &Hold| ns.sweep_covers_hold(began, sweep, node, hold);
        let holds = match (&sweep.target, self.owners_of_holds(&sweep.target)) {
            (Target::Path(path), _) => self.next_holds_at(path, goes),
            (_, Some(owners)) => self.next_holds_of(&owners, goes),
            (_, None) => self.next_holds(sweep.after_path.as_ref(), goes),
        };
        sweep.after_path = holds.scanned_to.or(sweep.after_path.take());
        sweep.ended_holds += holds.found.len() as u64;
        for (node, owner) in holds.found {
            if matches!(sweep.target, Target::Unlisted(_)) {
                self.owe_unheard(node, owner);
            }
            self.end_hold(node, owner, sweep.target.end_cause());
        }
    }

    /// Ends holds of semaphores, and waits for them.
    fn sweep_permits(&mut self, began: Revision, sweep: &mut Sweep) {
        if sweep.permits_done || self.budget.ends == 0 || self.budget.visits == 0 {
            return;
        }
        let mut ended = EndedPermits::default();
        let (target, after) = ((&sweep.target, began), sweep.after_permits.take());
        sweep.after_permits = self.end_permits(target, &sweep.old_processes, after, &mut ended);
        sweep.permits_done = sweep.after_permits.is_none();
        sweep.ended_holds += ended.holds;
        sweep.ended_waits += ended.waits;
    }

    /// Ends arrivals at barriers.
    fn sweep_arrivals(&mut self, began: Revision, sweep: &mut Sweep) {
        if sweep.arrivals_done || self.budget.ends == 0 || self.budget.visits == 0 {
            return;
        }
        let mut ended = EndedPermits::default();
        let (target, after) = ((&sweep.target, began), sweep.after_arrival.take());
        sweep.after_arrival = self.end_arrivals(target, &sweep.old_processes, after, &mut ended);
        sweep.arrivals_done = sweep.after_arrival.is_none();
        sweep.ended_holds += ended.holds;
        sweep.ended_waits += ended.waits;
    }

    /// Removes sessions once their holds and waits are gone.
    fn sweep_sessions(&mut self, began: Revision, sweep: &mut Sweep) {
        while sweep.target.is_reset() && self.budget.ends > 0 && self.budget.visits > 0 {
            let after = sweep.after_session.as_deref();
            let next = match after {
                None => self.ns.sessions.first_key_value(),
                Some(after) => self.ns.sessions.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).next(),
            };
            let Some((id, number)) = next.map(|(id, session)| (id.clone(), session.facts.number)) else { return };
            self.budget.visits -= 1;
            sweep.after_session = Some(id.to_string());
            if number < began && sweep.target.covers_session(&id, number) {
                self.budget.ends -= 1;
                self.remove_session(&id, SessionEnd::Reset);
            }
        }
    }

    pub(super) fn session_numbered(&self, number: SessionNumber) -> Option<&Session> {
        let (_, session_id) = self.sessions.get(&number).filter(|(slot, _)| *slot == self.slot)?;
        self.ns.sessions.get(session_id).filter(|session| session.facts.number == number)
    }

    /// Returns the owners of the waits to end, unless scanning the queue is faster.
    fn owners_of_waits(&self, target: &Target) -> Option<Vec<OwnerId>> {
        match target {
            Target::Path(_) => Some(Vec::new()),
            Target::Owner(owner, number) => Some(self.ns.owner_of(owner, *number).into_iter().collect()),
            Target::Session(number) | Target::Unlisted(number) => match self.session_numbered(*number) {
                Some(session) => session.owners_if_few(session.waiting, &self.ns.bounds),
                None => Some(Vec::new()),
            },
            Target::Reset { .. } => None,
        }
    }

    /// Returns the owners of the holds to end, if these are so few that visiting the owners is faster.
    fn owners_of_holds(&self, target: &Target) -> Option<Vec<OwnerId>> {
        match target {
            Target::Owner(owner, number) => {
                let owner = self.ns.owner_of(owner, *number);
                let holds = owner.map_or(0, |owner| self.ns.owners.get(owner).holds.len());
                let few = self.ns.bounds.ends_per_slice.saturating_mul(2);
                (holds <= few).then(|| owner.into_iter().collect())
            }
            Target::Session(number) | Target::Unlisted(number) => {
                let session = self.session_numbered(*number)?;
                session.owners_if_few(session.holds, &self.ns.bounds)
            }
            Target::Path(_) | Target::Reset { .. } => None,
        }
    }

    /// Returns whether the wait existed.
    pub(super) fn end_wait_if_present(&mut self, position: QueuePosition) -> bool {
        // The end of another upgrade may have ended this one.
        let is_there = self.ns.waits.contains_key(&position);
        if is_there {
            self.end_wait(position, Reason::Ended);
        }
        is_there
    }
}
