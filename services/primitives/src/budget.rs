//! The work of one slice.

use crate::Bounds;

/// The work that may still be done before the next entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Holds and waits that may be ended.
    pub ends: usize,
    /// Requests that may be granted.
    pub grants: usize,
    /// Places that may be looked at.
    pub visits: usize,
    /// Awaits that may be moved to the queues of their locks.
    pub moves: usize,
}

impl Budget {
    /// Returns the budget of one slice.
    pub fn of(bounds: &Bounds) -> Self {
        let grants = bounds.grants_per_slice;
        Self { ends: bounds.ends_per_slice, grants, visits: bounds.visits_per_slice, moves: grants }
    }

    /// Takes the first items, at most as many as the remaining ends.
    pub fn take<T>(&mut self, things: impl Iterator<Item = T>) -> Vec<T> {
        let taken: Vec<T> = things.take(self.ends).collect();
        self.ends -= taken.len();
        taken
    }

    /// Returns whether there is room for one more end, and takes that. What costs nothing else counts, too. The first
    /// call in a slice returns true, so call it only if there is something to end or to enter.
    pub fn takes_end(&mut self) -> bool {
        let has_budget = self.has_budget();
        self.ends = self.ends.saturating_sub(1);
        has_budget
    }

    /// Returns whether there is room for one more end.
    pub fn has_budget(&self) -> bool {
        self.ends > 0 && self.grants > 0 && self.visits > 0
    }
}
