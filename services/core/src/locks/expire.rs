//! Ends holds and waits that are due.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_primitives::chunked_set::ChunkedSet;

use super::LocksState;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::NodeId;
use crate::{AccountId, EntryContext, FencingToken, Mode, Reason};

/// Deadlines of a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct DueIndex {
    /// When each hold's current phase ends, or the hold by force.
    pub(super) holds: ChunkedSet<Deadline, Deadline>,
    /// The end of every wait with a limit.
    pub(super) waits: BTreeSet<WaitEnd>,
}

/// The end of a hold's current phase, or of the hold by force; ordered by time, then by grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub(super) at_ms: u64,
    pub(super) token: FencingToken,
    pub(super) node: NodeId,
}

/// The end of a wait, ordered by time, then by queue position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitEnd {
    pub(super) at_ms: u64,
    pub(super) wait: u64,
    pub(super) position: QueuePosition,
}

/// The first deadline of a namespace. `number` is the fencing token, the wait, the id of a latch, or what a barrier
/// has; no two namespaces of a shard share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstDue {
    pub(super) at_ms: u64,
    what: DueItem,
    number: u64,
    pub(super) slot: u32,
}

/// What is due. At equal times holds end before waits, so that no waiter receives `TIMED_OUT` for a lock that was free in
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DueItem {
    Hold,
    Wait,
    /// After waits: a request that stops waiting for the lock hands its signal on.
    Await,
    Latch,
    Permits,
    PermitsWait,
    Barrier,
    /// An ended session whose transition is over.
    TableSession,
}

impl DueIndex {
    fn first(&self, slot: u32) -> Option<FirstDue> {
        let hold = self.holds.first();
        let hold = hold.map(|hold| FirstDue { at_ms: hold.at_ms, what: DueItem::Hold, number: hold.token, slot });
        let wait = self.waits.first();
        let wait = wait.map(|wait| FirstDue { at_ms: wait.at_ms, what: DueItem::Wait, number: wait.wait, slot });
        hold.into_iter().chain(wait).min()
    }
}

impl Namespace {
    /// Returns the first deadline of anything in the namespace.
    pub(super) fn earliest_due(&self, slot: u32) -> Option<FirstDue> {
        let permits = self.permits.first_due().map(|due| FirstDue::of_permits(due, slot));
        self.earliest_due_elsewhere(slot).into_iter().chain(permits).min()
    }

    /// Returns the first deadline of anything but semaphores and pools.
    pub(super) fn earliest_due_elsewhere(&self, slot: u32) -> Option<FirstDue> {
        let latch = self.latches.first_due();
        let latch = latch.map(|(at_ms, number)| FirstDue { at_ms, what: DueItem::Latch, number, slot });
        let barrier = self.barriers.first_due();
        let barrier = barrier.map(|(at_ms, number)| FirstDue { at_ms, what: DueItem::Barrier, number, slot });
        let awaits = self.conditions.first_due();
        let awaits = awaits.map(|(at_ms, wait)| FirstDue { at_ms, what: DueItem::Await, number: wait.0, slot });
        let session = self.table_log.first_due();
        let session = session.map(|(at_ms, number)| FirstDue { at_ms, what: DueItem::TableSession, number, slot });
        self.due.first(slot).into_iter().chain(latch).chain(barrier).chain(awaits).chain(session).min()
    }
}

impl FirstDue {
    /// Returns that of a table of semaphores and pools: its instant, whether it is a wait, and its number.
    pub(super) fn of_permits((at_ms, is_wait, number): (u64, bool, u64), slot: u32) -> Self {
        let what = if is_wait { DueItem::PermitsWait } else { DueItem::Permits };
        Self { at_ms, what, number, slot }
    }
}

impl Hold {
    pub(super) fn deadline(&self, node: NodeId) -> Option<Deadline> {
        Some(Deadline { at_ms: self.ends_at_ms()?, token: self.token, node })
    }
}

impl LocksState {
    /// Ends hold phases and waits that are due at the shard clock, within one slice. After each, grants the requests
    /// that it unblocks, as if the leader had been punctual. Within a namespace, follows the order of time. If more
    /// than a slice is due, each account gets an equal share.
    pub(super) fn expire_due(&mut self, context: &EntryContext) {
        while self.budget.ends > 0 {
            let first = self.due.range(..=self.due_bound()).filter(|first| !self.has_pending_grants(first.slot));
            let mut first: BTreeSet<FirstDue> = first.take(self.budget.ends).copied().collect();
            let accounts: BTreeSet<AccountId> = first.iter().map(|first| self.account_of(first.slot)).collect();
            let Some(ends) = self.budget.ends.checked_div(accounts.len()) else { return };
            let looks = self.budget.visits / accounts.len();
            let mut shares: BTreeMap<AccountId, (usize, usize)> =
                accounts.into_iter().map(|account| (account, (ends, looks))).collect();
            while let Some(next) = first.pop_first() {
                let share = shares.get_mut(&self.account_of(next.slot)).filter(|(ends, looks)| *ends > 0 && *looks > 0);
                let Some((ends, looks)) = share else { continue };
                self.budget.visits = *looks;
                let until = first.first().copied().unwrap_or(self.due_bound());
                let ended = self.end_first_due(next, until, *ends, context);
                *looks = self.budget.visits;
                *ends -= ended;
                self.budget.ends -= ended;
                let namespace = self.namespaces.get(next.slot);
                first.extend(
                    namespace.first_due.filter(|next| *next <= self.due_bound() && !namespace.has_grants_left()),
                );
            }
            self.budget.visits = shares.values().map(|(_, looks)| looks).sum();
            if shares.values().any(|(_, looks)| *looks == 0) {
                return;
            }
        }
    }

    fn account_of(&self, slot: u32) -> AccountId {
        self.namespaces.get(slot).id.account
    }

    /// Returns a bound above all deadlines that are due, and below the rest.
    fn due_bound(&self) -> FirstDue {
        FirstDue { at_ms: self.common.clock_ms, what: DueItem::TableSession, number: u64::MAX, slot: u32::MAX }
    }

    /// Returns whether a namespace must continue granting before anything else ends in it.
    fn has_pending_grants(&self, slot: u32) -> bool {
        self.namespaces.get(slot).has_grants_left()
    }

    /// Ends one of: a wait; the due work of one latch; all semaphore work due before an instant and before anything
    /// else; or the phases that share a grant and a deadline, in path order. Returns how many ends that cost. The end
    /// of an awaited hold may change the wait-for graph, so this charges for rebuilding it.
    fn end_first_due(&mut self, first: FirstDue, until: FirstDue, at_most: usize, context: &EntryContext) -> usize {
        let mut work = self.txn_in(first.slot, context);
        match first.what {
            DueItem::Hold | DueItem::Wait => {}
            DueItem::Await => {
                work.call_elapsed();
                work.run_grant_loop();
                return 1;
            }
            DueItem::Latch => {
                work.end_due_latch();
                return 1;
            }
            DueItem::Barrier => return work.end_due_barrier().min(at_most),
            DueItem::TableSession => {
                work.end_due_table_session();
                return 1;
            }
            DueItem::Permits | DueItem::PermitsWait => {
                let ended = work.end_due_permits(until, at_most);
                work.run_grant_loop();
                return ended.min(at_most);
            }
        }
        if first.what == DueItem::Wait {
            let end = *work.ns.due.waits.first().expect("what is due first was found there");
            let ends = work.ns.waiting(end.position).ends();
            work.end_wait(end.position, Reason::TimedOut);
            work.run_grant_loop();
            work.charge_closure(false);
            return ends.min(at_most);
        }
        let of_grant = |node| Deadline { at_ms: first.at_ms, token: first.number, node };
        let is_of_grant = |deadline: &Deadline| (deadline.at_ms, deadline.token) == (first.at_ms, first.number);
        let due = work.ns.due.holds.at_or_after(of_grant(NodeId(0))).take_while(is_of_grant);
        let mut nodes: Vec<NodeId> = due.map(|deadline| deadline.node).collect();
        work.sort_by_path(&mut nodes);
        nodes.truncate(at_most);
        let mut is_awaited = false;
        for node in &nodes {
            let hold = work.ns.tree.get(*node).holds.of_token(first.number);
            let (owner, mode): (OwnerId, Mode) =
                hold.map(|hold| (hold.owner, hold.mode)).expect("a deadline belongs to a hold");
            is_awaited |= work.ns.is_awaited(*node, mode, owner);
            work.end_due_hold(*node, owner, first.at_ms);
        }
        work.run_grant_loop();
        if is_awaited {
            work.charge_closure(false);
        }
        nodes.len()
    }
}
