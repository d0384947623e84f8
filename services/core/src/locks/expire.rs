//! Ending what is due.

use std::collections::{BTreeMap, BTreeSet};

use super::LocksState;
use super::hold::Hold;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::NodeId;
use crate::{AccountId, EntryContext, FencingToken, Mode, Reason};

/// What ends by itself in a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct DueIndex {
    /// The end of every hold's present phase.
    pub(super) holds: BTreeSet<Deadline>,
    /// The end of every wait that has one.
    pub(super) waits: BTreeSet<WaitEnd>,
}

/// The end of a hold's present phase: in order of time, then of grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub(super) at_ms: u64,
    pub(super) token: FencingToken,
    pub(super) node: NodeId,
}

/// The end of a wait: in order of time, then of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitEnd {
    pub(super) at_ms: u64,
    pub(super) wait: u64,
    pub(super) position: QueuePosition,
}

/// What ends first in a namespace. Of what is due at one time holds come first, so that nobody is told `TIMEOUT_EXIT_CODE` of a
/// lock that was free in time. The number is the token or the wait, which no two namespaces of a shard share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstDue {
    pub(super) at_ms: u64,
    is_wait: bool,
    number: u64,
    pub(super) slot: u32,
}

impl DueIndex {
    pub(super) fn first(&self, slot: u32) -> Option<FirstDue> {
        let hold = self.holds.first();
        let hold = hold.map(|hold| FirstDue { at_ms: hold.at_ms, is_wait: false, number: hold.token, slot });
        let wait = self.waits.first();
        let wait = wait.map(|wait| FirstDue { at_ms: wait.at_ms, is_wait: true, number: wait.wait, slot });
        hold.into_iter().chain(wait).min()
    }
}

impl Hold {
    pub(super) fn deadline(&self, node: NodeId) -> Option<Deadline> {
        Some(Deadline { at_ms: self.deadline_ms?.get(), token: self.token, node })
    }
}

impl LocksState {
    /// Ends phases of holds and waits whose time the clock has reached, as many as a slice has, and grants after each what
    /// it lets in, as if the leader had been punctual. Within a namespace that is in order of time; where there is more
    /// than a slice, every account has its share of it.
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
                let ended = self.end_first_due(next, *ends, context);
                *looks = self.budget.visits;
                *ends -= ended;
                self.budget.ends -= ended;
                let namespace = self.namespaces.get(next.slot);
                first.extend(
                    namespace.first_due.filter(|next| *next <= self.due_bound() && !namespace.has_pending_grants),
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

    /// Above all that is due at the clock, and below the rest.
    fn due_bound(&self) -> FirstDue {
        FirstDue { at_ms: self.common.clock_ms, is_wait: true, number: u64::MAX, slot: u32::MAX }
    }

    /// Whether a namespace has to go on granting before anything else ends there.
    fn has_pending_grants(&self, slot: u32) -> bool {
        self.namespaces.get(slot).has_pending_grants
    }

    /// Ends a wait, or the present phases that began with one grant and end at one time, in order of path; how many. The
    /// end of what others wait for may change who waits for whom, so that is charged.
    fn end_first_due(&mut self, first: FirstDue, at_most: usize, context: &EntryContext) -> usize {
        let mut work = self.txn_in(first.slot, context);
        if first.is_wait {
            let end = *work.ns.due.waits.first().expect("what is due first was found there");
            work.end_wait(end.position, Reason::TimedOut);
            work.run_grant_loop();
            work.charge_closure(false);
            return 1;
        }
        let of_grant = |node| Deadline { at_ms: first.at_ms, token: first.number, node };
        let due = work.ns.due.holds.range(of_grant(NodeId(0))..=of_grant(NodeId(u32::MAX)));
        let mut nodes: Vec<NodeId> = due.map(|deadline| deadline.node).collect();
        work.sort_by_path(&mut nodes);
        nodes.truncate(at_most);
        let mut is_awaited = false;
        for node in &nodes {
            let hold = work.ns.tree.get(*node).holds.of_token(first.number);
            let (owner, mode): (OwnerId, Mode) =
                hold.map(|hold| (hold.owner, hold.mode)).expect("a deadline belongs to a hold");
            is_awaited |= work.ns.is_awaited(*node, mode, owner);
            work.end_phase(*node, owner, first.at_ms);
        }
        work.run_grant_loop();
        if is_awaited {
            work.charge_closure(false);
        }
        nodes.len()
    }
}
