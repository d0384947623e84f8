//! What a request that waits for a lock again, and the hold that it gets, remember of the hold that was given up; and
//! what a hold remembers of the signals under it.

use std::sync::Arc;

use crate::locks::hold::{Hold, HoldExtras};
use crate::{FencingToken, Woken};

/// How many of them a hold remembers: the latest.
const MAX_REMEMBERED: usize = 4;

/// What was given up, and why its owner waits for the lock again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::locks) struct CameFrom {
    /// The token of the hold that was given up. A repeat of the await is found by it.
    pub(in crate::locks) token: FencingToken,
    pub(in crate::locks) woken: Woken,
    /// The condition whose signal is handed on if the owner ends without the lock.
    pub(in crate::locks) passes_on: Option<Arc<str>>,
}

/// The answer to a signal that had an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::locks) struct SignalAnswer {
    pub(in crate::locks) id: Box<str>,
    pub(in crate::locks) signalled: u64,
    pub(in crate::locks) awaiting: u64,
}

impl Hold {
    /// Returns what the hold came from, the latest last.
    pub(in crate::locks) fn came_from(&self) -> &[CameFrom] {
        self.extras.as_deref().map_or(&[], |rare| &rare.came_from)
    }

    /// Returns the answers to signals under the hold, the latest last.
    pub(in crate::locks) fn signals(&self) -> &[SignalAnswer] {
        self.extras.as_deref().map_or(&[], |rare| &rare.signals)
    }

    pub(in crate::locks) fn remember(&mut self, came_from: CameFrom) {
        push_latest(&mut self.extras.get_or_insert_default().came_from, came_from);
    }

    pub(in crate::locks) fn remember_signal(&mut self, answer: SignalAnswer) {
        push_latest(&mut self.extras.get_or_insert_default().signals, answer);
    }

    /// Returns by how much it is charged more once it remembers a signal.
    pub(super) fn charge_of_signal(&self, id: &str) -> u64 {
        let forgets = self.signals().first().filter(|_| self.signals().len() == MAX_REMEMBERED);
        of_signal(id).saturating_sub(forgets.map_or(0, |oldest| of_signal(&oldest.id)))
    }

    /// Returns the charge of what it remembers in bytes.
    pub(in crate::locks) fn charge_of_past(&self) -> u64 {
        self.extras.as_deref().map_or(0, HoldExtras::charge_of_past)
    }
}

impl HoldExtras {
    fn charge_of_past(&self) -> u64 {
        let came_from: u64 = self.came_from.iter().map(CameFrom::charge).sum();
        came_from + self.signals.iter().map(|answer| of_signal(&answer.id)).sum::<u64>()
    }
}

impl CameFrom {
    /// Returns the charge in bytes.
    pub(in crate::locks) fn charge(&self) -> u64 {
        of_past(self.passes_on.as_deref().unwrap_or_default())
    }
}

/// Returns the charge of having come from a condition.
pub(super) fn of_past(condition: &str) -> u64 {
    96 + condition.len() as u64
}

/// Returns the charge of remembering a signal.
pub(super) fn of_signal(id: &str) -> u64 {
    96 + id.len() as u64
}

fn push_latest<T>(all: &mut Vec<T>, latest: T) {
    if all.len() == MAX_REMEMBERED {
        all.remove(0);
    }
    all.push(latest);
}
