//! Semaphores of one namespace: who uses and who waits for how many of their permits.
//!
//! Invariants: the permits in use never exceed those that there are, unless these were lowered since. The first of a
//! queue is granted in the step that makes it fit, or in the slices after it. Nobody overtakes within a priority. A
//! semaphore that was not configured is gone with its last hold and wait.
//!
//! Deliberately unknown here: locks, sessions (only their numbers), who is connected. Waits for permits take no part in
//! the detection of deadlocks: a request waits for some of many holders, so an edge to each would accuse innocents.

mod acquire;
mod charge;
mod configure;
mod end;
mod item;
mod key;
mod many;
mod phase;
mod queries;
mod settle;
mod snapshot;
mod verify;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::locks::EncodedMetadata;
use crate::{FencingToken, Path, Revision, SessionNumber, WaitId};
use item::{PermitHold, PermitWait, QueueRank};
use key::Key;

pub(crate) use acquire::Requester;
pub(crate) use key::Scope;
pub(crate) use many::{Choice, EndedPermits, PermitCursor, PermitItem};
pub(crate) use snapshot::{FrozenSemaphores, SemaphoreCursor, SemaphoreItem};

/// The semaphores of a namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphores {
    by_path: BTreeMap<Arc<Path>, Arc<Semaphore>>,
    /// Where each hold and each waiting request is.
    index: BTreeMap<Arc<Key>, HoldOrWait>,
    due: BTreeMap<DueEntry, Arc<Key>>,
    /// In order of arrival.
    waits: BTreeMap<WaitId, Arc<Key>>,
    /// Semaphores whose queue may be granted or refused something.
    unsettled: BTreeSet<Arc<Path>>,
    /// Semaphores that are being deleted, by the revision at which that began.
    deleting: BTreeMap<Revision, Arc<Path>>,
    /// The holds and waiting requests of each session.
    of_sessions: BTreeMap<SessionNumber, u64>,
    /// The holds and waiting requests of each process, by the revision at which they began.
    of_processes: BTreeSet<(Arc<str>, Revision)>,
    /// Sessions that have ended and still have something here. Nothing is granted to them.
    ending: BTreeMap<SessionNumber, EndingSession>,
    holds: u64,
    /// The charge of all of them.
    bytes: u64,
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

/// One semaphore. Shared with snapshots in progress.
#[derive(Clone, Debug)]
struct Semaphore {
    permits: u64,
    is_configured: bool,
    description: String,
    metadata: EncodedMetadata,
    /// The revision of its last change.
    revision: Revision,
    /// The revision at which its deletion began.
    deleting: Option<Revision>,
    /// The permits of all holds.
    in_use: u64,
    holds: BTreeMap<FencingToken, Arc<PermitHold>>,
    /// The holds by weight, and then the earlier first, from the end.
    heaviest: BTreeSet<(u64, Reverse<FencingToken>)>,
    queue: BTreeMap<QueueRank, Arc<PermitWait>>,
    /// The waiting requests by weight.
    weights: BTreeSet<(u64, QueueRank)>,
}

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

impl Semaphores {
    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }

    /// Returns the number of holds, in any phase.
    pub(crate) fn holds(&self) -> u64 {
        self.holds
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting(&self) -> u64 {
        self.waits.len() as u64
    }

    /// Returns the charge of all semaphores in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns what is due first: the instant of the shard clock, whether it is a wait, and its number.
    pub(crate) fn first_due(&self) -> Option<(u64, bool, u64)> {
        self.due.first_key_value().map(|(due, _)| (due.at_ms, due.is_wait, due.number))
    }

    /// Returns whether work is left for the next slice.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.unsettled.is_empty() || !self.deleting.is_empty()
    }

    /// Returns whether no queue is left to settle.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Returns whether the deletion that began at that revision goes on.
    pub(crate) fn is_deleting(&self, began: Revision) -> bool {
        self.deleting.contains_key(&began)
    }

    /// Returns the revisions at which unfinished deletions began.
    pub(crate) fn deletions(&self) -> impl Iterator<Item = Revision> {
        self.deleting.keys().copied()
    }

    /// Changes an existing semaphore.
    fn change<T>(&mut self, path: &Path, change: impl FnOnce(&mut Semaphore) -> T) -> Option<T> {
        self.by_path.get_mut(path).map(|semaphore| change(Arc::make_mut(semaphore)))
    }

    fn hold(&self, path: &Path, token: FencingToken) -> Option<&PermitHold> {
        self.by_path.get(path)?.holds.get(&token).map(AsRef::as_ref)
    }

    fn wait(&self, path: &Path, rank: QueueRank) -> Option<&PermitWait> {
        self.by_path.get(path)?.queue.get(&rank).map(AsRef::as_ref)
    }

    fn insert_semaphore(&mut self, path: Arc<Path>, semaphore: Semaphore) {
        self.bytes += semaphore.charge(&path);
        self.by_path.insert(path, Arc::new(semaphore));
    }

    /// Removes a semaphore without holds and waits.
    fn remove_semaphore(&mut self, path: &Path) {
        if let Some(semaphore) = self.by_path.remove(path) {
            self.bytes -= semaphore.charge(path);
            self.unsettled.remove(path);
        }
    }

    fn remove_if_unused(&mut self, path: &Path) {
        let is_unused = |semaphore: &Arc<Semaphore>| {
            !semaphore.is_configured && semaphore.holds.is_empty() && semaphore.queue.is_empty()
        };
        if self.by_path.get(path).is_some_and(|it| is_unused(it) && it.deleting.is_none()) {
            self.remove_semaphore(path);
        }
    }

    fn insert_hold(&mut self, hold: PermitHold) {
        self.bytes += hold.charge();
        self.holds += 1;
        self.add_to_indexes(&hold.key, HoldOrWait::Hold(hold.token), hold.due());
        let path = Arc::clone(&hold.key.path);
        self.change(&path, |semaphore| {
            semaphore.in_use += hold.weight;
            semaphore.revision = semaphore.revision.max(hold.token);
            semaphore.heaviest.insert((hold.weight, Reverse(hold.token)));
            semaphore.holds.insert(hold.token, Arc::new(hold));
        });
    }

    fn remove_hold(&mut self, path: &Path, token: FencingToken) -> Option<PermitHold> {
        let hold = self.change(path, |semaphore| {
            let hold = semaphore.holds.remove(&token)?;
            semaphore.in_use -= hold.weight;
            semaphore.heaviest.remove(&(hold.weight, Reverse(token)));
            Some(Arc::unwrap_or_clone(hold))
        });
        let hold = hold.flatten()?;
        self.bytes -= hold.charge();
        self.holds -= 1;
        self.remove_from_indexes(&hold.key, HoldOrWait::Hold(token), hold.due());
        Some(hold)
    }

    fn insert_wait(&mut self, rank: QueueRank, wait: PermitWait) {
        self.bytes += wait.charge();
        self.waits.insert(rank.wait, Arc::clone(&wait.key));
        self.add_to_indexes(&wait.key, HoldOrWait::Wait(rank), wait.due(rank));
        let path = Arc::clone(&wait.key.path);
        self.change(&path, |semaphore| {
            semaphore.weights.insert((wait.weight, rank));
            semaphore.queue.insert(rank, Arc::new(wait));
        });
    }

    fn remove_wait(&mut self, path: &Path, rank: QueueRank) -> Option<PermitWait> {
        let wait = self.change(path, |semaphore| {
            let wait = semaphore.queue.remove(&rank)?;
            semaphore.weights.remove(&(wait.weight, rank));
            Some(Arc::unwrap_or_clone(wait))
        });
        let wait = wait.flatten()?;
        self.bytes -= wait.charge();
        self.waits.remove(&rank.wait);
        self.remove_from_indexes(&wait.key, HoldOrWait::Wait(rank), wait.due(rank));
        Some(wait)
    }

    /// Changes a hold, and what is known of it elsewhere.
    fn change_hold(&mut self, path: &Path, token: FencingToken, change: impl FnOnce(&mut PermitHold)) {
        if let Some(mut hold) = self.remove_hold(path, token) {
            change(&mut hold);
            self.insert_hold(hold);
        }
    }

    /// Changes a waiting request, and what is known of it elsewhere.
    fn change_wait(&mut self, path: &Path, rank: QueueRank, change: impl FnOnce(&mut PermitWait)) {
        if let Some(mut wait) = self.remove_wait(path, rank) {
            change(&mut wait);
            self.insert_wait(rank, wait);
        }
    }

    fn add_to_indexes(&mut self, key: &Arc<Key>, entry: HoldOrWait, due: Option<DueEntry>) {
        match &key.scope {
            Scope::Session { number, .. } => *self.of_sessions.entry(*number).or_default() += 1,
            Scope::Process(process_id) => {
                self.of_processes.insert((Arc::clone(process_id), entry.since()));
            }
        }
        self.index.insert(Arc::clone(key), entry);
        self.due.extend(due.map(|due| (due, Arc::clone(key))));
    }

    fn remove_from_indexes(&mut self, key: &Arc<Key>, entry: HoldOrWait, due: Option<DueEntry>) {
        match &key.scope {
            Scope::Session { number, .. } => {
                if let Some(count) = self.of_sessions.get_mut(number) {
                    *count -= 1;
                    if *count == 0 {
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

impl Semaphore {
    fn new(permits: u64, is_configured: bool, revision: Revision) -> Self {
        Self {
            permits,
            is_configured,
            description: String::new(),
            metadata: EncodedMetadata::default(),
            revision,
            deleting: None,
            in_use: 0,
            holds: BTreeMap::new(),
            heaviest: BTreeSet::new(),
            queue: BTreeMap::new(),
            weights: BTreeSet::new(),
        }
    }

    /// Returns whether so many more permits are free.
    fn fits(&self, weight: u64) -> bool {
        self.permits > 0 && self.in_use.saturating_add(weight) <= self.permits
    }

    /// Returns whether a request needs more than there is at all. While there are no permits, none does.
    fn is_too_large(&self, weight: u64) -> bool {
        self.permits > 0 && weight > self.permits
    }
}
