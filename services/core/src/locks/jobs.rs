//! Continues work that takes more than one slice.
//!
//! A command begins long work, and each following entry continues it by one slice until it is finished. While work
//! remains, the leader proposes entries without commands, one after the other. Accounts are served round-robin, and so
//! are the namespaces of an account.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use super::{LocksState, NamespaceKey};
use crate::{AccountId, EntryContext, Incarnation, JobState, Path, Revision};

/// Namespaces with unfinished work.
#[derive(Clone, Debug, Default)]
pub(super) struct JobQueue {
    accounts: BTreeMap<AccountId, AccountJobs>,
    /// The account that was served last, since the queue was last empty.
    cursor: Option<AccountId>,
}

/// The namespaces of one account, served round-robin.
#[derive(Clone, Debug, Default)]
struct AccountJobs {
    namespaces: BTreeSet<Incarnation>,
    /// The namespace that was served last, since the account was last without work.
    cursor: Option<Incarnation>,
}

impl JobQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    pub(super) fn contains(&self, key: &NamespaceKey) -> bool {
        self.accounts.get(&key.account).is_some_and(|account| account.namespaces.contains(&key.incarnation))
    }

    pub(super) fn insert(&mut self, key: NamespaceKey) {
        if self.is_empty() {
            self.cursor = None;
        }
        self.accounts.entry(key.account).or_default().namespaces.insert(key.incarnation);
    }

    pub(super) fn remove(&mut self, key: &NamespaceKey) {
        let Some(account) = self.accounts.get_mut(&key.account) else { return };
        account.namespaces.remove(&key.incarnation);
        if account.namespaces.is_empty() {
            self.accounts.remove(&key.account);
        }
    }

    fn iter(&self) -> impl Iterator<Item = NamespaceKey> {
        self.accounts.iter().flat_map(|(account, busy)| {
            busy.namespaces.iter().map(|incarnation| NamespaceKey { account: *account, incarnation: *incarnation })
        })
    }

    /// Returns the next namespace of the next account.
    fn next(&mut self) -> Option<NamespaceKey> {
        let after = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.accounts.range((after, Bound::Unbounded)).next().or(self.accounts.first_key_value());
        let account = *next?.0;
        let busy = self.accounts.get_mut(&account)?;
        let after = busy.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let next = busy.namespaces.range((after, Bound::Unbounded)).next().or(busy.namespaces.first()).copied();
        (self.cursor, busy.cursor) = (Some(account), next);
        next.map(|incarnation| NamespaceKey { account, incarnation })
    }

    /// Returns the accounts and namespaces that were served last, for a snapshot.
    pub(super) fn cursors(&self) -> Option<JobCursors> {
        let of_accounts = self.accounts.iter().filter_map(|(account, busy)| Some((*account, busy.cursor?)));
        let last = self.cursor.filter(|_| !self.is_empty())?;
        Some(JobCursors { last, of_accounts: of_accounts.collect() })
    }

    pub(super) fn restore(&mut self, turns: JobCursors) {
        self.cursor = Some(turns.last).filter(|_| !self.is_empty());
        for (account, turn) in turns.of_accounts {
            if let Some(busy) = self.accounts.get_mut(&account) {
                busy.cursor = Some(turn);
            }
        }
    }
}

/// The accounts and namespaces that were served last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobCursors {
    last: AccountId,
    of_accounts: Vec<(AccountId, Incarnation)>,
}

/// Waits to end, and the position up to which the queue was scanned.
#[derive(Default)]
pub(super) struct WaitBatch {
    pub(super) found: Vec<QueuePosition>,
    pub(super) scanned_to: Option<QueuePosition>,
}

/// Holds to end, and the path up to which the tree was scanned.
pub(super) struct HoldBatch {
    pub(super) found: Vec<(NodeId, OwnerId)>,
    pub(super) scanned_to: Option<Path>,
}

impl LocksState {
    /// Runs one slice of unfinished work.
    pub(super) fn run_jobs(&mut self, context: &EntryContext) {
        while self.budget.grants > 0 && self.budget.ends > 0 && self.budget.visits > 0 && self.budget.moves > 0 {
            let Some(key) = self.jobs.next() else { return };
            self.txn_in(self.slots[&key], context).run_jobs();
        }
    }

    /// Returns the state of the work that a command began.
    pub(crate) fn job_state(&self, began: Revision) -> JobState {
        let mut busy = self.jobs.iter().filter_map(|key| self.slots.get(&key));
        let is_running =
            |namespace: &Namespace| namespace.sweeps.contains_key(&began) || namespace.permits.is_deleting(began);
        if busy.any(|slot| is_running(self.namespaces.get(*slot))) {
            return JobState::Running;
        }
        self.finished.get(began).unwrap_or(JobState::Unknown)
    }

    /// Returns the number of finished sweeps since the process started.
    pub(crate) fn sweeps_done(&self) -> u64 {
        self.finished.count
    }
}

impl NamespaceTxn<'_> {
    /// Grants come first: work that ends later unblocks later requests.
    fn run_jobs(&mut self) {
        self.ns.has_pending_grants = false;
        self.run_grant_loop();
        let grants_first = |ns: &Namespace| ns.has_pending_grants && !ns.holds_grants_back();
        while !grants_first(self.ns) && self.budget.ends > 0 && self.budget.visits > 0 {
            let (ending, sweep) =
                (self.ns.ending_sessions.keys().next().copied(), self.ns.sweeps.keys().next().copied());
            match (ending, sweep) {
                (Some(number), _) => self.continue_session_end(number),
                (None, Some(began)) => self.sweep(began),
                (None, None) => break,
            }
            self.run_grant_loop();
        }
        self.run_permit_jobs();
    }

    /// Returns the next waits to end among those older than revision `before`, as many as the slice allows.
    pub(super) fn next_waits(
        &mut self,
        after: Option<QueuePosition>,
        before: Option<Revision>,
        mut goes: impl FnMut(&Namespace, QueuePosition) -> bool,
    ) -> WaitBatch {
        let (ns, mut some) = (&*self.ns, WaitBatch::default());
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        for place in ns.waits.range((after, Bound::Unbounded)).map(|(place, _)| *place) {
            let is_late = before.is_some_and(|before| !place.is_upgrade() && place.wait().0 >= before);
            if is_late || self.budget.ends == 0 || self.budget.visits == 0 {
                break;
            }
            self.budget.visits -= 1;
            some.scanned_to = Some(place);
            if goes(ns, place) {
                self.budget.ends = self.budget.ends.saturating_sub(ns.waiting(place).ends());
                some.found.push(place);
            }
        }
        some
    }

    /// Returns the first waits of these owners to end, as many as the slice allows.
    pub(super) fn next_waits_of(
        &mut self,
        owners: &[OwnerId],
        goes: impl Fn(&Namespace, QueuePosition) -> bool,
    ) -> WaitBatch {
        let ns = &*self.ns;
        let owners = owners.iter().filter(|owner| ns.owners.contains(**owner));
        let mut places: Vec<QueuePosition> = owners.flat_map(|owner| ns.owners.get(*owner).queue_positions()).collect();
        places.sort_unstable();
        let mut found = Vec::new();
        for place in places.into_iter().filter(|place| goes(ns, *place)) {
            if self.budget.ends == 0 {
                break;
            }
            self.budget.ends = self.budget.ends.saturating_sub(ns.waiting(place).ends());
            found.push(place);
        }
        WaitBatch { found, scanned_to: None }
    }

    /// Returns how many ends of a slice so many holds and waits cost, which are all that some owners have; or more than
    /// the slice has left.
    pub(super) fn ends_of_all(&self, things: usize, owners: &[OwnerId]) -> usize {
        if things > self.budget.ends {
            return things;
        }
        let owners = owners.iter().filter(|owner| self.ns.owners.contains(**owner));
        let waits = owners.flat_map(|owner| self.ns.owners.get(*owner).queue_positions());
        // One end of each is counted already.
        let more = waits.map(|position| self.ns.waiting(position).ends().saturating_sub(1));
        more.fold(things, usize::saturating_add)
    }

    /// Returns the next holds to end in path order, as many as the slice allows.
    pub(super) fn next_holds(
        &mut self,
        after: Option<&Path>,
        mut goes: impl FnMut(&Namespace, NodeId, &Hold) -> bool,
    ) -> HoldBatch {
        let (ns, mut found, mut reached) = (&*self.ns, Vec::new(), None);
        for node in ns.paths_under(&Path::default(), after) {
            if self.budget.ends == 0 || self.budget.visits == 0 {
                break;
            }
            let holds = ns.tree.get(node).holds.as_slice();
            self.budget.visits = self.budget.visits.saturating_sub(holds.len().max(1));
            let mut goes = holds.iter().filter(|hold| goes(ns, node, hold)).map(|hold| (node, hold.owner));
            found.extend(self.budget.take(goes.by_ref()));
            // The next batch continues with the rest of this path.
            if goes.next().is_none() {
                reached = Some(node);
            }
        }
        HoldBatch { found, scanned_to: reached.map(|node| ns.tree.path_of(node)) }
    }

    /// Returns the first holds of these owners to end, as many as the slice allows.
    pub(super) fn next_holds_of(
        &mut self,
        owners: &[OwnerId],
        goes: impl Fn(&Namespace, NodeId, &Hold) -> bool,
    ) -> HoldBatch {
        let holds = self.in_order_of_path(self.find_holds(owners, goes));
        let holds = holds.into_iter().map(|(_, node, owner)| (node, owner));
        HoldBatch { found: self.budget.take(holds), scanned_to: None }
    }

    /// Returns the first holds at a path to end, as many as the slice allows.
    pub(super) fn next_holds_at(&mut self, path: &Path, goes: impl Fn(&Namespace, NodeId, &Hold) -> bool) -> HoldBatch {
        let ns = &*self.ns;
        let node = ns.tree.find(path).into_iter();
        let holds = node.flat_map(|node| ns.tree.get(node).holds.as_slice().iter().map(move |hold| (node, hold)));
        let holds = holds.filter(|(node, hold)| goes(ns, *node, hold)).map(|(node, hold)| (node, hold.owner));
        HoldBatch { found: self.budget.take(holds), scanned_to: None }
    }

    /// Adds the namespace to the job queue or removes it, depending on whether work remains.
    pub(super) fn update_jobs(&mut self) {
        let key = NamespaceKey::of(&self.ns.id);
        if self.ns.has_jobs() {
            self.jobs.insert(key);
        } else {
            self.jobs.remove(&key);
        }
    }
}

impl Namespace {
    /// Returns whether requests may be granted that precede whatever is due later.
    pub(super) fn has_grants_left(&self) -> bool {
        let has_called = self.conditions.has_called() && !self.is_frozen();
        self.has_pending_grants || !self.permits.is_settled() || has_called
    }

    /// Returns whether the namespace has unfinished work.
    pub(super) fn has_jobs(&self) -> bool {
        let has_grants = self.has_pending_grants && !self.is_requeueing;
        let of_locks = has_grants || !self.ending_sessions.is_empty() || !self.sweeps.is_empty();
        of_locks || self.permits.has_jobs() || self.conditions.has_called()
    }
}
