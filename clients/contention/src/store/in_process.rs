//! An in-process store of owners, for tests of its users.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use holdfast_client::Result;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

use super::{AcquireMutex, Acquisition, Holding, MutexStore};
use crate::timestamp::Timestamp;

/// Stores owners in memory by the rules of the lock service: FIFO order, a transition in which only the owner may
/// renew, and rising tokens. Clones share their state.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, ContentionFactory, InProcessStore};
///
/// # fn main() -> Result<(), holdfast_contention::ContentionError> {
/// let options = ContendOptions::new(Duration::from_secs(2)).transition(Duration::from_secs(1));
/// let factory = ContentionFactory::new(Arc::new(InProcessStore::default()), options)?;
/// # drop(factory);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct InProcessStore(Arc<Mutex<MutexTable>>);

#[derive(Debug, Default)]
struct MutexTable {
    last_token: u64,
    last_ticket: u64,
    mutexes: BTreeMap<String, Entry>,
}

/// Exists while a contender owns the mutex, waits for it or observes it.
#[derive(Debug, Default)]
struct Entry {
    hold: Option<Hold>,
    /// Waiting contenders, in order of arrival.
    queue: VecDeque<u64>,
    changed: watch::Sender<()>,
}

#[derive(Clone, Debug)]
struct Hold {
    owner_id: String,
    fencing_token: u64,
    acquired_at: Timestamp,
    ttl_at: Timestamp,
    transition_at: Timestamp,
    metadata: BTreeMap<String, String>,
}

enum Attempt {
    Done(Acquisition),
    /// Check again when something changes, or at this instant.
    Wait(watch::Receiver<()>, Timestamp),
}

impl MutexTable {
    /// Returns the entry, after it removed an expired hold.
    fn entry(&mut self, mutex: &str, now: Timestamp) -> &mut Entry {
        let entry = self.mutexes.entry(mutex.to_owned()).or_default();
        if entry.hold.as_ref().is_some_and(|hold| hold.transition_at <= now) {
            entry.hold = None;
            entry.changed.send_replace(());
        }
        entry
    }

    fn remove_unused(&mut self, mutex: &str) {
        let is_unused =
            |entry: &Entry| entry.hold.is_none() && entry.queue.is_empty() && entry.changed.receiver_count() == 0;
        if self.mutexes.get(mutex).is_some_and(is_unused) {
            self.mutexes.remove(mutex);
        }
    }

    fn attempt(&mut self, request: &AcquireMutex, ticket: u64) -> Attempt {
        let now = Timestamp::now();
        let token = self.last_token + 1;
        let entry = self.entry(&request.mutex, now);
        let ttl_at = now + request.ttl;
        let transition_at = ttl_at + request.transition;
        match &mut entry.hold {
            Some(hold) if hold.owner_id == request.contender_id => {
                let is_meant = request.fencing_token.is_none_or(|token| token == hold.fencing_token);
                if is_meant {
                    (hold.ttl_at, hold.transition_at) = (ttl_at, transition_at);
                    hold.metadata.clone_from(&request.metadata);
                    let fencing_token = hold.fencing_token;
                    entry.changed.send_replace(());
                    return Attempt::Done(Acquisition::Granted { fencing_token });
                }
            }
            None if request.fencing_token.is_none() && entry.queue.front().is_none_or(|first| *first == ticket) => {
                entry.hold = Some(Hold {
                    owner_id: request.contender_id.clone(),
                    fencing_token: token,
                    acquired_at: now,
                    ttl_at,
                    transition_at,
                    metadata: request.metadata.clone(),
                });
                entry.changed.send_replace(());
                self.last_token = token;
                return Attempt::Done(Acquisition::Granted { fencing_token: token });
            }
            _ => {}
        }
        if request.wait.is_zero() || request.fencing_token.is_some() {
            let holding = entry.hold.as_ref().map(|hold| hold.to_holding(now));
            return Attempt::Done(Acquisition::NotGranted { holding });
        }
        if !entry.queue.contains(&ticket) {
            entry.queue.push_back(ticket);
        }
        let ends_at = entry.hold.as_ref().map_or(Timestamp::FOREVER, |hold| hold.transition_at);
        Attempt::Wait(entry.changed.subscribe(), ends_at)
    }
}

impl Hold {
    fn to_holding(&self, now: Timestamp) -> Holding {
        Holding {
            owner_id: self.owner_id.clone(),
            fencing_token: self.fencing_token,
            held_for: now.since(self.acquired_at),
            ttl_left: (self.ttl_at > now).then(|| self.ttl_at.since(now)),
            transition_left: Some(self.transition_at.since(now)),
            metadata: self.metadata.clone(),
        }
    }
}

/// A position in the queue; dropping it leaves the queue.
struct Ticket<'a> {
    store: &'a InProcessStore,
    mutex: &'a str,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut table = self.store.0.lock();
        if let Some(entry) = table.mutexes.get_mut(self.mutex) {
            let waiting = entry.queue.len();
            entry.queue.retain(|number| *number != self.number);
            if entry.queue.len() < waiting {
                entry.changed.send_replace(());
            }
        }
        table.remove_unused(self.mutex);
    }
}

impl InProcessStore {
    async fn wait_and_acquire(&self, request: &AcquireMutex) -> Acquisition {
        let number = {
            let mut table = self.0.lock();
            table.last_ticket += 1;
            table.last_ticket
        };
        let _ticket = Ticket { store: self, mutex: &request.mutex, number };
        let ends_at = Timestamp::now() + request.wait;
        loop {
            let attempt = self.0.lock().attempt(request, number);
            let (mut changed, look_at) = match attempt {
                Attempt::Done(acquisition) => return acquisition,
                Attempt::Wait(changed, look_at) => (changed, look_at),
            };
            if Timestamp::now() >= ends_at {
                return Acquisition::NotGranted { holding: self.holding_of(&request.mutex) };
            }
            tokio::select! {
                // The sender lives as long as the queue has an entry.
                _ = changed.changed() => {}
                () = look_at.min(ends_at).reached() => {}
            }
        }
    }

    fn holding_of(&self, mutex: &str) -> Option<Holding> {
        let now = Timestamp::now();
        let mut table = self.0.lock();
        let holding = table.entry(mutex, now).hold.as_ref().map(|hold| hold.to_holding(now));
        table.remove_unused(mutex);
        holding
    }

    fn release_hold(&self, mutex: &str, contender_id: &str) -> bool {
        let mut table = self.0.lock();
        let entry = table.entry(mutex, Timestamp::now());
        let held = entry.hold.as_ref().is_some_and(|hold| hold.owner_id == contender_id);
        if held {
            entry.hold = None;
            entry.changed.send_replace(());
        }
        table.remove_unused(mutex);
        held
    }
}

impl MutexStore for InProcessStore {
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>> {
        self.wait_and_acquire(request).map(Ok).boxed()
    }

    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        async move { Ok(self.release_hold(mutex, contender_id)) }.boxed()
    }

    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>> {
        async move { Ok(self.holding_of(mutex)) }.boxed()
    }

    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>> {
        let changed = self.0.lock().entry(mutex, Timestamp::now()).changed.subscribe();
        WatchStream::from_changes(changed).map(Ok).boxed()
    }
}
