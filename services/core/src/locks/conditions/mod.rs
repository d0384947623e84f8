//! Conditions of locks: who gave a lock up to await which condition of it.
//!
//! An await belongs to nothing in the tree: it holds nothing and waits for nobody. Once it is called, by a signal or
//! because its time is over, it leaves the queue of its condition. Then it is moved to the queue of the lock, in order
//! of the calls and within the slices. From there it is an ordinary waiting request, which knows what it came from.
//!
//! Invariants: an await is called at most once. A signal is not lost: if the owner that it woke ends without the lock,
//! the first owner that still awaits the condition is called instead, once all awaits that end in this step have ended.
//! Between commands no such signal is left.

mod await_lock;
mod came_from;
mod charge;
mod end;
mod queries;
mod session_requests;
mod signal;
mod snapshot;
mod verify;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::item_bytes::ItemBytes;

use super::hold::HoldTerms;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use crate::{FencingToken, Path, Revision, SessionNumber, WaitId, Woken};

pub(super) use came_from::{CameFrom, SignalAnswer};
pub(super) use charge::{max_of_await, max_of_signal};
pub(super) use end::AwaitsOf;
pub(super) use snapshot::{AwaitItem, PastItem};

/// An owner that awaits a condition of a lock.
#[derive(Clone, Debug)]
pub(super) struct Await {
    pub(super) owner: OwnerId,
    /// The length in bytes of the names of its owner.
    pub(super) owner_bytes: usize,
    pub(super) path: Arc<Path>,
    pub(super) condition: Arc<str>,
    /// The token of the hold that it gave up.
    pub(super) from_token: FencingToken,
    /// The terms of the hold that it will have.
    pub(super) terms: HoldTerms,
    pub(super) request_id: Option<Box<str>>,
    /// The calls that rely on it.
    pub(super) attempts: Attempts,
    /// The shard clock at which its time is over.
    pub(super) ends_at_ms: Option<u64>,
    /// How long it will wait for the lock.
    pub(super) relock_ms: Option<u64>,
    /// The leader's wall clock when it began.
    pub(super) since_ms: u64,
    /// Set once it has left the queue of its condition.
    pub(super) call: Option<WakeCall>,
}

/// Why an await left the queue of its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WakeCall {
    /// The revision of the call. They are moved to the queues of their locks in this order.
    pub(super) at: Revision,
    pub(super) woken: Woken,
    /// Whether the signal is handed on if the owner ends without the lock.
    pub(super) passes_on: bool,
}

/// Where the owner is that gave up the hold with some token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitStage {
    /// It awaits a condition.
    Awaiting(WaitId),
    /// It waits for the lock.
    Waiting(QueuePosition),
}

/// Who gave one lock up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LockConditions {
    /// The awaits of each condition that were not called, in order of arrival.
    queues: BTreeMap<Arc<str>, BTreeSet<WaitId>>,
    /// By the token of the hold that was given up.
    stages: BTreeMap<FencingToken, AwaitStage>,
    /// The number of awaits, called or not.
    awaits: u64,
}

/// The conditions of the locks of one namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    awaits: BTreeMap<WaitId, Arc<Await>>,
    by_lock: BTreeMap<Arc<Path>, LockConditions>,
    /// The awaits that were called and not moved yet.
    called: BTreeMap<Revision, WaitId>,
    due: BTreeSet<(u64, WaitId)>,
    of_sessions: BTreeMap<SessionNumber, BTreeSet<WaitId>>,
    /// How many signals to a condition are to be handed on. Empty between commands.
    owed: BTreeMap<(Arc<Path>, Arc<str>), u64>,
    /// The bytes of all awaits.
    bytes: ItemBytes,
}

impl Conditions {
    /// Returns the number of awaits.
    pub(super) fn len(&self) -> usize {
        self.awaits.len()
    }

    pub(super) fn bytes(&self) -> ItemBytes {
        self.bytes
    }

    pub(super) fn get(&self, wait: WaitId) -> Option<&Await> {
        self.awaits.get(&wait).map(AsRef::as_ref)
    }

    /// Returns the awaits in order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WaitId, &Arc<Await>)> {
        self.awaits.iter().map(|(wait, awaits)| (*wait, awaits))
    }

    /// Returns the awaits after a given one, in order of arrival; only a session's awaits if a number is given.
    pub(super) fn after(&self, session: Option<SessionNumber>, after: Option<WaitId>, at_most: usize) -> Vec<WaitId> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        match session {
            None => self.awaits.range(range).map(|(wait, _)| *wait).take(at_most).collect(),
            Some(number) => {
                let of_session = self.of_sessions.get(&number);
                of_session.into_iter().flat_map(|waits| waits.range(range).copied()).take(at_most).collect()
            }
        }
    }

    /// Returns where the owner is that gave up the hold of a path with that token.
    pub(super) fn stage(&self, path: &Path, token: FencingToken) -> Option<AwaitStage> {
        self.by_lock.get(path)?.stages.get(&token).copied()
    }

    /// Returns how many await a condition and were not called.
    pub(super) fn awaiting(&self, path: &Path, condition: &str) -> u64 {
        let queue = self.by_lock.get(path).and_then(|lock| lock.queues.get(condition));
        queue.map_or(0, |queue| queue.len() as u64)
    }

    /// Returns how many await conditions of a lock, and how many conditions it has besides one of that name.
    pub(super) fn load_of(&self, path: &Path, condition: &str) -> (u64, u64) {
        let Some(lock) = self.by_lock.get(path) else { return (0, 0) };
        let names = lock.queues.len() - usize::from(lock.queues.contains_key(condition));
        (lock.awaits, names as u64)
    }

    /// Returns the await that is due first, with its instant of the shard clock.
    pub(super) fn first_due(&self) -> Option<(u64, WaitId)> {
        self.due.first().copied()
    }

    /// Returns the awaits of a lock that were not called and are due, in that order.
    fn due_of(&self, path: &Path, clock_ms: u64) -> Vec<WaitId> {
        let lock = self.by_lock.get(path).filter(|_| self.first_due().is_some_and(|(at_ms, _)| at_ms <= clock_ms));
        // Of one lock there are few.
        let waits = lock.into_iter().flat_map(|lock| lock.queues.values().flatten());
        let due =
            waits.filter_map(|wait| Some((self.get(*wait)?.ends_at_ms.filter(|at_ms| *at_ms <= clock_ms)?, *wait)));
        let mut due: Vec<(u64, WaitId)> = due.collect();
        due.sort_unstable();
        due.into_iter().map(|(_, wait)| wait).collect()
    }

    /// Returns the await that is to be moved to the queue of its lock first.
    pub(super) fn first_called(&self) -> Option<WaitId> {
        self.called.first_key_value().map(|(_, wait)| *wait)
    }

    /// Returns whether the await that was called at that revision is not moved yet.
    pub(super) fn is_called_at(&self, revision: Revision) -> bool {
        self.called.contains_key(&revision)
    }

    pub(super) fn has_called(&self) -> bool {
        !self.called.is_empty()
    }

    fn insert(&mut self, wait: WaitId, session: Option<SessionNumber>, awaits: Await) {
        self.bytes += awaits.bytes();
        let lock = self.by_lock.entry(Arc::clone(&awaits.path)).or_default();
        lock.stages.insert(awaits.from_token, AwaitStage::Awaiting(wait));
        lock.awaits += 1;
        match awaits.call {
            None => {
                self.due.extend(awaits.ends_at_ms.map(|at_ms| (at_ms, wait)));
                if !is_enabled(Mutation::CondTwoSteps) {
                    lock.queues.entry(Arc::clone(&awaits.condition)).or_default().insert(wait);
                }
            }
            Some(call) => _ = self.called.insert(call.at, wait),
        }
        if let Some(number) = session {
            self.of_sessions.entry(number).or_default().insert(wait);
        }
        self.awaits.insert(wait, Arc::new(awaits));
    }

    fn remove(&mut self, wait: WaitId, session: Option<SessionNumber>) -> Option<Await> {
        let awaits = self.awaits.remove(&wait).map(Arc::unwrap_or_clone)?;
        self.bytes -= awaits.bytes();
        self.leave_queue(wait, &awaits);
        if let Some(call) = awaits.call {
            self.called.remove(&call.at);
        }
        if let Some(lock) = self.by_lock.get_mut(&awaits.path) {
            lock.awaits -= 1;
        }
        self.remove_position(&awaits.path, awaits.from_token);
        if let Some(number) = session
            && let Some(waits) = self.of_sessions.get_mut(&number)
        {
            waits.remove(&wait);
            if waits.is_empty() {
                self.of_sessions.remove(&number);
            }
        }
        Some(awaits)
    }

    /// Removes an await from the queue of its condition and from the deadlines.
    fn leave_queue(&mut self, wait: WaitId, awaits: &Await) {
        if let Some(at_ms) = awaits.ends_at_ms {
            self.due.remove(&(at_ms, wait));
        }
        let Some(lock) = self.by_lock.get_mut(&awaits.path) else { return };
        let Some(queue) = lock.queues.get_mut(&awaits.condition) else { return };
        queue.remove(&wait);
        if queue.is_empty() {
            lock.queues.remove(&awaits.condition);
        }
    }

    /// Remembers where the owner waits for the lock that gave up the hold with that token.
    pub(super) fn insert_position(&mut self, path: &Path, token: FencingToken, position: QueuePosition) {
        match self.by_lock.get_mut(path) {
            Some(lock) => _ = lock.stages.insert(token, AwaitStage::Waiting(position)),
            None => {
                let stages = BTreeMap::from([(token, AwaitStage::Waiting(position))]);
                let lock = LockConditions { stages, ..LockConditions::default() };
                self.by_lock.insert(Arc::new(path.clone()), lock);
            }
        }
    }

    pub(super) fn remove_position(&mut self, path: &Path, token: FencingToken) {
        let Some(lock) = self.by_lock.get_mut(path) else { return };
        lock.stages.remove(&token);
        if *lock == LockConditions::default() {
            self.by_lock.remove(path);
        }
    }

    /// Changes an await that was not called, and what is known of it elsewhere.
    fn change(&mut self, wait: WaitId, change: impl FnOnce(&mut Await)) {
        let Some(awaits) = self.awaits.get_mut(&wait).map(Arc::make_mut) else { return };
        let before = awaits.ends_at_ms.filter(|_| awaits.call.is_none());
        self.bytes -= awaits.bytes();
        change(awaits);
        self.bytes += awaits.bytes();
        let after = awaits.ends_at_ms.filter(|_| awaits.call.is_none());
        before.into_iter().for_each(|at_ms| _ = self.due.remove(&(at_ms, wait)));
        self.due.extend(after.map(|at_ms| (at_ms, wait)));
        // By that fault, a call gives the lock up and its repeat awaits the condition.
        if is_enabled(Mutation::CondTwoSteps)
            && awaits.call.is_none()
            && let Some(lock) = self.by_lock.get_mut(&awaits.path)
        {
            lock.queues.entry(Arc::clone(&awaits.condition)).or_default().insert(wait);
        }
    }

    /// Changes which calls rely on an await.
    pub(super) fn change_attempts(&mut self, wait: WaitId, change: impl FnOnce(&mut Attempts)) {
        if let Some(awaits) = self.awaits.get_mut(&wait) {
            change(&mut Arc::make_mut(awaits).attempts);
        }
    }

    /// Calls an await: it leaves the queue of its condition.
    fn call(&mut self, wait: WaitId, call: WakeCall) {
        let Some(awaits) = self.awaits.get_mut(&wait) else { return };
        Arc::make_mut(awaits).call = Some(call);
        let awaits = Arc::clone(awaits);
        self.leave_queue(wait, &awaits);
        self.called.insert(call.at, wait);
    }

    /// Returns the await of a condition that began first and was not called.
    fn first_of(&self, path: &Path, condition: &str) -> Option<WaitId> {
        self.by_lock.get(path)?.queues.get(condition)?.first().copied()
    }

    /// Returns the awaits of a condition that were not called, in order.
    fn all_of(&self, path: &Path, condition: &str) -> Vec<WaitId> {
        let queue = self.by_lock.get(path).and_then(|lock| lock.queues.get(condition));
        queue.into_iter().flatten().copied().collect()
    }

    /// Records that the owner that a signal woke ended without the lock.
    pub(super) fn owe(&mut self, path: &Path, condition: &Arc<str>) {
        if !is_enabled(Mutation::CondSignalSwallowed) {
            *self.owed.entry((Arc::new(path.clone()), Arc::clone(condition))).or_default() += 1;
        }
    }

    /// Returns true if a signal must be handed on to another waiter.
    pub(super) fn has_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Takes a condition for which a signal is to be handed on.
    fn take_owed(&mut self) -> Option<(Arc<Path>, Arc<str>)> {
        let mut first = self.owed.first_entry()?;
        let key = first.key().clone();
        *first.get_mut() -= 1;
        if *first.get() == 0 {
            first.remove();
        }
        Some(key)
    }

    /// Removes the await that began first, when its namespace is gone.
    pub(super) fn pop(&mut self) -> Option<(WaitId, Arc<Await>)> {
        self.awaits.pop_first()
    }
}
