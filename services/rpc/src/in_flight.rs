//! Requests that were sent and are not answered.

use holdfast_fair_queue::KeyMap;
use parking_lot::Mutex;

/// Requests in flight after which those that nobody waits for are removed.
const SWEEP_THRESHOLD: usize = 1_024;

/// What waits for the replies of a request.
pub trait Waiter {
    /// Returns true if nobody waits any more.
    fn is_closed(&self) -> bool;
}

/// Requests in flight on one connection, by number. Callers that give up need not remove theirs.
#[derive(Debug)]
pub struct InFlight<W>(Mutex<Table<W>>);

#[derive(Debug)]
struct Table<W> {
    waiters: KeyMap<u64, W>,
    sweep_at: usize,
}

impl<W> Default for InFlight<W> {
    fn default() -> Self {
        Self(Mutex::new(Table { waiters: KeyMap::default(), sweep_at: SWEEP_THRESHOLD }))
    }
}

impl<W: Waiter> InFlight<W> {
    /// Adds a request.
    pub fn insert(&self, number: u64, waiter: W) {
        let Table { waiters, sweep_at } = &mut *self.0.lock();
        if waiters.len() >= *sweep_at {
            waiters.retain(|_, waiter| !waiter.is_closed());
            // As many again may be added before the next sweep.
            *sweep_at = SWEEP_THRESHOLD.max(2 * waiters.len());
        }
        waiters.insert(number, waiter);
    }

    /// Removes a request.
    pub fn remove(&self, number: u64) -> Option<W> {
        self.0.lock().waiters.remove(&number)
    }

    /// Passes an intermediate reply to the waiter of a request, which is removed if `deliver` returns false.
    pub fn deliver(&self, number: u64, deliver: impl FnOnce(&W) -> bool) {
        let waiters = &mut self.0.lock().waiters;
        if waiters.get(&number).is_some_and(|waiter| !deliver(waiter)) {
            waiters.remove(&number);
        }
    }

    /// Removes all requests, since no reply can arrive.
    pub fn take_all(&self) -> Vec<W> {
        std::mem::take(&mut self.0.lock().waiters).into_values().collect()
    }
}
