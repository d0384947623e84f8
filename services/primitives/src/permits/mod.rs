//! Semaphores and pools of one namespace: who uses and who waits for how many permits, or for which members. Both are
//! sources of permits; they differ in what they have (`source`, `members`), and share holds, queues and owners.
//!
//! Invariants: the permits in use never exceed those that there are, unless these were lowered since. A member is in at
//! most one hold. The first of a queue is granted in the step that makes it fit, or in the slices after it. Nobody
//! overtakes within a priority, but those who wait for a member by its name hold up only those who want that member. A
//! semaphore that was not configured is gone with its last hold and wait.
//!
//! Deliberately unknown here: locks, sessions (only their numbers), who is connected. Waits for permits take no part in
//! the detection of deadlocks: a request waits for some of many holders, so an edge to each would accuse innocents.

mod acquire;
mod ask;
mod charge;
mod configure;
mod end;
mod item;
mod key;
mod many;
mod members;
mod phase;
mod pools;
mod queries;
mod settle;
mod snapshot;
mod source;
mod verify;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ask::AskRecord;
use crate::item_bytes::ItemBytes;
use crate::{FencingToken, Kind, Revision, SessionNumber, WaitId};
use item::{PermitHold, PermitWait, QueueRank};
use key::{Key, Name};
use members::{Member, Members};
use source::Source;

pub use key::{Requester, Scope};
pub use many::{Choice, EndedPermits, PermitCursor, PermitItem};
pub use snapshot::{FrozenPermits, SourceCursor, SourceItem};

/// The semaphores and pools of a namespace.
#[derive(Clone, Debug, Default)]
pub struct PermitTable {
    by_name: BTreeMap<Arc<Name>, Arc<Source>>,
    pools: usize,
    /// Where each hold and each waiting request is.
    index: BTreeMap<Arc<Key>, HoldOrWait>,
    due: BTreeMap<DueEntry, Arc<Key>>,
    /// In order of arrival.
    waits: BTreeMap<WaitId, Arc<Key>>,
    rests: BTreeSet<Rest>,
    /// Sources whose queue may be granted or refused something.
    unsettled: BTreeSet<Arc<Name>>,
    /// Sources that are being deleted, by the revision at which that began.
    deleting: BTreeMap<Revision, Arc<Name>>,
    /// The holds and waiting requests of each session.
    of_sessions: BTreeMap<SessionNumber, Load>,
    /// The holds and waiting requests of each process, by the revision at which they began.
    of_processes: BTreeSet<(Arc<str>, Revision)>,
    /// Sessions that have ended and still have something here. Nothing is granted to them.
    ending: BTreeMap<SessionNumber, EndingSession>,
    holds: u64,
    /// The bytes of all of them.
    bytes: ItemBytes,
    /// The request to release the hold that was restored last and has one. Not part of the state.
    last_ask: Option<Arc<AskRecord>>,
}

/// What a session has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    holds: u64,
    /// Its waiting requests.
    waits: u64,
    /// What ending them costs, in ends of a slice.
    ends: u64,
}

impl Load {
    fn things(&self) -> u64 {
        self.holds + self.waits
    }

    fn count_of(&mut self, entry: HoldOrWait) -> &mut u64 {
        match entry {
            HoldOrWait::Hold(_) => &mut self.holds,
            HoldOrWait::Wait(_) => &mut self.waits,
        }
    }

    fn add(&mut self, entry: HoldOrWait, ends: u64) {
        *self.count_of(entry) += 1;
        self.ends += ends;
    }

    fn remove(&mut self, entry: HoldOrWait, ends: u64) {
        *self.count_of(entry) -= 1;
        self.ends -= ends;
    }
}

/// A session that has ended and still has something here.
#[derive(Clone, Debug)]
struct EndingSession {
    /// The shard clock at which it ended.
    since_ms: u64,
    /// Whether it expired, so that its holds enter their transition.
    has_expired: bool,
    /// The key up to which nothing is left to end. Not part of the state: it only saves visits.
    reached: Option<Arc<Key>>,
}

/// A member that rests: the shard clock at which that ends, the revision at which its hold ended, and whose it is. No two
/// namespaces of a shard share a revision, so that their rests end in the same order on every replica.
type Rest = (u64, Revision, Arc<Name>, Arc<str>);

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldOrWait {
    Hold(FencingToken),
    Wait(QueueRank),
}

/// An instant of the shard clock. At equal times holds end before waits, so that no waiter receives `TIMED_OUT` for
/// permits that were free in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueEntry {
    at_ms: u64,
    is_wait: bool,
    /// The token or the wait.
    number: u64,
}

impl PermitTable {
    /// Returns the number of semaphores or of pools.
    pub fn count_of(&self, kind: Kind) -> usize {
        if kind == Kind::Pool { self.pools } else { self.by_name.len().saturating_sub(self.pools) }
    }

    /// Returns the number of holds, in any phase.
    pub fn holds(&self) -> u64 {
        self.holds
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> u64 {
        self.waits.len() as u64
    }

    /// Returns the bytes of all semaphores and pools.
    pub fn bytes(&self) -> ItemBytes {
        self.bytes
    }

    /// Returns what is due first: the instant of the shard clock, whether it is a wait, and its number.
    pub fn first_due(&self) -> Option<(u64, bool, u64)> {
        let rest = self.rests.first().map(|(at_ms, since, ..)| (*at_ms, false, *since));
        let due = self.due.first_key_value().map(|(due, _)| (due.at_ms, due.is_wait, due.number));
        rest.into_iter().chain(due).min()
    }

    /// Returns whether work is left for the next slice.
    pub fn has_jobs(&self) -> bool {
        !self.unsettled.is_empty() || !self.deleting.is_empty()
    }

    /// Returns whether no queue is left to settle.
    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Returns whether the deletion that began at that revision goes on.
    pub fn is_deleting(&self, began: Revision) -> bool {
        self.deleting.contains_key(&began)
    }

    /// Returns the revisions at which unfinished deletions began.
    pub fn deletions(&self) -> impl Iterator<Item = Revision> {
        self.deleting.keys().copied()
    }

    /// Changes an existing source.
    fn change<T>(&mut self, name: &Name, change: impl FnOnce(&mut Source) -> T) -> Option<T> {
        self.by_name.get_mut(name).map(|source| change(Arc::make_mut(source)))
    }

    /// Changes an existing source, and its charge.
    fn recharge<T>(&mut self, name: &Name, change: impl FnOnce(&mut Source) -> T) -> Option<T> {
        let (before, result, after) = self.change(name, |source| {
            let before = source.bytes(&name.path);
            let result = change(source);
            (before, result, source.bytes(&name.path))
        })?;
        self.bytes = self.bytes - before + after;
        Some(result)
    }

    /// Changes the members of an existing pool, and its charge.
    fn change_members<T>(&mut self, name: &Name, change: impl FnOnce(&mut Members) -> T) -> Option<T> {
        let changed = self.change(name, |source| {
            let members = source.members_mut()?;
            let before = members.bytes();
            let result = change(members);
            Some((before, result, members.bytes()))
        });
        let (before, result, after) = changed.flatten()?;
        self.bytes = self.bytes - before + after;
        Some(result)
    }

    /// Changes a member of a pool, and what is known of its rest.
    fn change_member(&mut self, name: &Arc<Name>, member: &Arc<str>, change: impl FnOnce(&mut Member)) {
        let rests = self.change_members(name, |members| members.change(member, change)).flatten();
        let Some((before, after)) = rests.filter(|(before, after)| before != after) else { return };
        if let Some((at_ms, since)) = before {
            self.rests.remove(&(at_ms, since, Arc::clone(name), Arc::clone(member)));
        }
        self.rests.extend(after.map(|(at_ms, since)| (at_ms, since, Arc::clone(name), Arc::clone(member))));
    }

    /// Removes a member that nobody holds.
    fn remove_member(&mut self, name: &Arc<Name>, member: &Arc<str>) {
        let removed = self.change_members(name, |members| members.remove(member));
        if let Some((at_ms, since)) = removed.flatten().and_then(|removed| removed.rest()) {
            self.rests.remove(&(at_ms, since, Arc::clone(name), Arc::clone(member)));
        }
    }

    fn hold(&self, name: &Name, token: FencingToken) -> Option<&PermitHold> {
        self.by_name.get(name)?.holds.get(&token).map(AsRef::as_ref)
    }

    fn wait(&self, name: &Name, rank: QueueRank) -> Option<&PermitWait> {
        self.by_name.get(name)?.queue.get(&rank).map(AsRef::as_ref)
    }

    fn insert_source(&mut self, name: Arc<Name>, source: Source) {
        self.bytes += source.bytes(&name.path);
        self.pools += usize::from(name.kind == Kind::Pool);
        self.by_name.insert(name, Arc::new(source));
    }

    /// Removes a source without holds and waits.
    fn remove_source(&mut self, name: &Arc<Name>) {
        let Some(source) = self.by_name.remove(name) else { return };
        self.bytes -= source.bytes(&name.path);
        self.pools -= usize::from(name.kind == Kind::Pool);
        self.unsettled.remove(name);
        for (member, facts) in source.members().into_iter().flat_map(Members::iter) {
            if let Some((at_ms, since)) = facts.rest() {
                self.rests.remove(&(at_ms, since, Arc::clone(name), Arc::clone(member)));
            }
        }
    }

    fn remove_if_unused(&mut self, name: &Arc<Name>) {
        let is_unused = |source: &Source| !source.is_configured() && source.holds.is_empty() && source.queue.is_empty();
        if self.by_name.get(name).is_some_and(|it| is_unused(it) && it.deleting.is_none()) {
            self.remove_source(name);
        }
    }

    fn insert_hold(&mut self, hold: PermitHold) {
        self.bytes += hold.bytes();
        self.holds += 1;
        self.add_to_indexes(&hold.key, HoldOrWait::Hold(hold.token), hold.due(), hold.ends());
        let name = Arc::clone(&hold.key.name);
        self.change(&name, |source| {
            source.in_use += hold.weight;
            source.revision = source.revision.max(hold.token);
            source.heaviest.insert((hold.weight, Reverse(hold.token)));
            source.holds.insert(hold.token, Arc::new(hold));
        });
    }

    fn remove_hold(&mut self, name: &Name, token: FencingToken) -> Option<PermitHold> {
        let hold = self.change(name, |source| {
            let hold = source.holds.remove(&token)?;
            source.in_use -= hold.weight;
            source.heaviest.remove(&(hold.weight, Reverse(token)));
            Some(Arc::unwrap_or_clone(hold))
        });
        let hold = hold.flatten()?;
        self.bytes -= hold.bytes();
        self.holds -= 1;
        self.remove_from_indexes(&hold.key, HoldOrWait::Hold(token), hold.due(), hold.ends());
        Some(hold)
    }

    fn insert_wait(&mut self, rank: QueueRank, wait: PermitWait) {
        self.bytes += wait.bytes();
        self.waits.insert(rank.wait, Arc::clone(&wait.key));
        self.add_to_indexes(&wait.key, HoldOrWait::Wait(rank), wait.due(rank), 1);
        let name = Arc::clone(&wait.key.name);
        self.change(&name, |source| {
            source.record_wait(&wait.wanted, rank, true);
            source.queue.insert(rank, Arc::new(wait));
        });
    }

    fn remove_wait(&mut self, name: &Name, rank: QueueRank) -> Option<PermitWait> {
        let wait = self.change(name, |source| {
            let wait = source.queue.remove(&rank)?;
            source.record_wait(&wait.wanted, rank, false);
            Some(Arc::unwrap_or_clone(wait))
        });
        let wait = wait.flatten()?;
        self.bytes -= wait.bytes();
        self.waits.remove(&rank.wait);
        self.remove_from_indexes(&wait.key, HoldOrWait::Wait(rank), wait.due(rank), 1);
        Some(wait)
    }

    /// Changes a hold where it is, and what is known of it elsewhere. Whose it is, its token and what was wanted stay:
    /// most of the indexes need no look.
    fn change_hold(&mut self, name: &Name, token: FencingToken, change: impl FnOnce(&mut PermitHold)) {
        let changed = self.change(name, |source| {
            let hold = Arc::make_mut(source.holds.get_mut(&token)?);
            let (weight, before) = (hold.weight, (hold.bytes(), hold.due()));
            change(hold);
            if hold.weight != weight {
                source.in_use = source.in_use - weight + hold.weight;
                source.heaviest.remove(&(weight, Reverse(token)));
                source.heaviest.insert((hold.weight, Reverse(token)));
            }
            Some((before, (hold.bytes(), hold.due()), Arc::clone(&hold.key)))
        });
        let Some(((bytes, due), (bytes_after, due_after), key)) = changed.flatten() else { return };
        self.bytes = self.bytes - bytes + bytes_after;
        if due != due_after {
            if let Some(due) = due {
                self.due.remove(&due);
            }
            self.due.extend(due_after.map(|due| (due, key)));
        }
    }

    /// Changes a waiting request, and what is known of it elsewhere.
    fn change_wait(&mut self, name: &Name, rank: QueueRank, change: impl FnOnce(&mut PermitWait)) {
        if let Some(mut wait) = self.remove_wait(name, rank) {
            change(&mut wait);
            self.insert_wait(rank, wait);
        }
    }

    fn add_to_indexes(&mut self, key: &Arc<Key>, entry: HoldOrWait, due: Option<DueEntry>, ends: u64) {
        match &key.scope {
            Scope::Session { number, .. } => {
                self.of_sessions.entry(*number).or_default().add(entry, ends);
            }
            Scope::Process(process_id) => {
                self.of_processes.insert((Arc::clone(process_id), entry.since()));
            }
        }
        self.index.insert(Arc::clone(key), entry);
        self.due.extend(due.map(|due| (due, Arc::clone(key))));
    }

    fn remove_from_indexes(&mut self, key: &Arc<Key>, entry: HoldOrWait, due: Option<DueEntry>, ends: u64) {
        match &key.scope {
            Scope::Session { number, .. } => {
                if let Some(load) = self.of_sessions.get_mut(number) {
                    load.remove(entry, ends);
                    if load.things() == 0 {
                        self.of_sessions.remove(number);
                    }
                }
            }
            Scope::Process(process_id) => {
                self.of_processes.remove(&(Arc::clone(process_id), entry.since()));
            }
        }
        self.index.remove(key);
        if let Some(due) = due {
            self.due.remove(&due);
        }
    }
}
