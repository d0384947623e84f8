//! Barriers of one namespace: parties that meet and go on together, in one generation after the other.
//!
//! Invariants: a generation ends once, in the step that decides it, and its outcome never changes. Nobody is told that
//! it tripped before it has, and then all who were in it are told so. An owner is in one generation of a barrier at a
//! time. The number of a generation is the revision of its beginning, so no number comes twice, whatever was deleted.
//!
//! Deliberately unknown here: locks, sessions (only their numbers), who is connected, who waits. Leaders hold replies
//! back until a barrier is settled.

mod arrive;
mod barrier;
mod charge;
mod configure;
mod end;
mod many;
mod party;
mod queries;
mod snapshot;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::item_bytes::ItemBytes;
use crate::permits::Scope;
use crate::{Path, Revision, SessionEnd, SessionNumber};
use barrier::{Arrival, Barrier};
use party::ArrivalKey;

pub use many::ArrivalCursor;
pub use snapshot::{BarrierCursor, BarrierItem, FrozenBarriers};

/// The barriers of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Barriers {
    by_path: BTreeMap<Arc<Path>, Arc<Barrier>>,
    /// The number of each arrival, also of those inside, by owner and barrier.
    index: BTreeMap<ArrivalKey, Revision>,
    /// The arrivals of sessions that have an id.
    requests: BTreeMap<(SessionNumber, Arc<str>), ArrivalKey>,
    /// By shard clock, and the number of an arrival or the generation of a barrier with nobody in it.
    due: BTreeMap<(u64, Revision), DueThing>,
    of_sessions: BTreeMap<SessionNumber, u64>,
    /// The arrivals of each process, by number.
    of_processes: BTreeSet<(Arc<str>, Revision)>,
    /// Sessions that have ended and still have arrivals.
    ending: BTreeMap<SessionNumber, EndingSession>,
    /// The bytes of all of them.
    bytes: ItemBytes,
}

/// A session that has ended and still has arrivals.
#[derive(Clone, Debug)]
struct EndingSession {
    why: SessionEnd,
    /// The arrival up to which none is left. Not part of the state: it only saves visits.
    reached: Option<ArrivalKey>,
}

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DueThing {
    /// The end of an arrival.
    Arrival(ArrivalKey),
    /// The end of a barrier with nobody in it.
    Barrier(Arc<Path>),
}

impl Barriers {
    /// Returns the number of barriers, those included of which only outcomes are left.
    pub fn barrier_count(&self) -> usize {
        self.by_path.len()
    }

    /// Returns the number of arrivals, those inside double barriers included.
    pub fn arrivals(&self) -> u64 {
        self.index.len() as u64
    }

    /// Returns the bytes of all barriers.
    pub fn bytes(&self) -> ItemBytes {
        self.bytes
    }

    /// Returns the first instant of the shard clock at which something is due, and its number.
    pub fn first_due(&self) -> Option<(u64, Revision)> {
        self.due.first_key_value().map(|(due, _)| *due)
    }

    /// Returns the number of arrivals of a session.
    pub fn count_of_session(&self, number: SessionNumber) -> u64 {
        self.of_sessions.get(&number).copied().unwrap_or_default()
    }

    /// Returns the number of the oldest arrival of a process.
    pub fn oldest_of_process(&self, process_id: &str) -> Option<Revision> {
        let process_id: Arc<str> = process_id.into();
        let (owner, number) = self.of_processes.range((Arc::clone(&process_id), Revision::MIN)..).next()?;
        (*owner == process_id).then_some(*number)
    }

    /// Returns whether a session has an arrival with that id.
    pub fn has_request(&self, number: SessionNumber, request_id: &str) -> bool {
        self.requests.contains_key(&(number, Arc::<str>::from(request_id)))
    }

    /// Changes an existing barrier, and what is known of it elsewhere.
    fn change<T>(&mut self, path: &Arc<Path>, change: impl FnOnce(&mut Barrier) -> T) -> Option<T> {
        let barrier = Arc::make_mut(self.by_path.get_mut(path)?);
        let (due, bytes) = (barrier.due(), barrier.bytes(path));
        let result = change(barrier);
        self.bytes = self.bytes - bytes + barrier.bytes(path);
        let after = barrier.due();
        if due != after {
            self.move_due(path, due, after);
        }
        Some(result)
    }

    fn move_due(&mut self, path: &Arc<Path>, before: Option<(u64, Revision)>, after: Option<(u64, Revision)>) {
        if let Some(before) = before {
            self.due.remove(&before);
        }
        self.due.extend(after.map(|after| (after, DueThing::Barrier(Arc::clone(path)))));
    }

    fn insert_barrier(&mut self, path: Arc<Path>, barrier: Barrier) {
        self.bytes += barrier.bytes(&path);
        self.move_due(&path, None, barrier.due());
        self.by_path.insert(path, Arc::new(barrier));
    }

    /// Removes a barrier with nobody in it.
    fn remove_barrier(&mut self, path: &Arc<Path>) {
        let Some(barrier) = self.by_path.remove(path) else { return };
        self.bytes -= barrier.bytes(path);
        self.move_due(path, barrier.due(), None);
    }

    /// Adds an arrival to the generation that gathers.
    fn insert_arrival(&mut self, arrival: Arrival) {
        let path = Arc::clone(&arrival.key.path);
        let arrival = Arc::new(arrival);
        self.add_to_indexes(&arrival);
        self.change(&path, |barrier| barrier.gather(arrival));
    }

    /// Replaces an arrival where it is.
    fn replace_arrival(&mut self, before: &Arrival, arrival: Arrival) {
        let path = Arc::clone(&arrival.key.path);
        self.remove_from_indexes(before);
        let arrival = Arc::new(arrival);
        self.add_to_indexes(&arrival);
        self.change(&path, |barrier| barrier.replace(before, arrival));
    }

    fn add_to_indexes(&mut self, arrival: &Arrival) {
        let key = &arrival.key;
        match &key.party.scope {
            Scope::Session { number, .. } => {
                *self.of_sessions.entry(*number).or_default() += 1;
                if let Some(request_id) = &arrival.request_id {
                    self.requests.insert((*number, Arc::clone(request_id)), key.clone());
                }
            }
            Scope::Process(process_id) => {
                self.of_processes.insert((Arc::clone(process_id), arrival.number));
            }
        }
        self.index.insert(key.clone(), arrival.number);
        self.due.extend(arrival.due().map(|due| (due, DueThing::Arrival(key.clone()))));
    }

    fn remove_from_indexes(&mut self, arrival: &Arrival) {
        match &arrival.key.party.scope {
            Scope::Session { number, .. } => {
                if let Some(count) = self.of_sessions.get_mut(number) {
                    *count -= 1;
                    if *count == 0 {
                        self.of_sessions.remove(number);
                    }
                }
                if let Some(request_id) = &arrival.request_id {
                    self.requests.remove(&(*number, Arc::clone(request_id)));
                }
            }
            Scope::Process(process_id) => {
                self.of_processes.remove(&(Arc::clone(process_id), arrival.number));
            }
        }
        self.index.remove(&arrival.key);
        if let Some(due) = arrival.due() {
            self.due.remove(&due);
        }
    }
}
