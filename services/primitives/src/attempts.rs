//! Tracks which calls rely on a queued request, a hold or a granted request. It is cancelled when the last of them
//! leaves.

use holdfast_mutations::{Mutation, is_enabled};

use crate::Rules;

/// Maximum number of attempts tracked apart. Beyond it, no leaving caller ends the queued request or the hold any more.
const MAX_TRACKED: usize = 4;

/// The attempt of a caller that never leaves. No call cancels by it, so the hold or request stays.
pub const PERMANENT: u64 = 0;

/// The attempts of the calls that may rely on an item. A call that received a response counts forever, because no
/// cancel removes it. Under rules 1, only the highest attempt is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    highest: u64,
    /// The other attempts, in ascending order.
    lower: Box<[u64]>,
}

impl Attempts {
    /// Returns the attempts of a single call.
    pub fn of(attempt: u64) -> Self {
        Self { highest: attempt, lower: Box::default() }
    }

    /// Returns attempts by the highest one and the others, in ascending order.
    pub fn of_all(highest: u64, lower: Box<[u64]>) -> Self {
        Self { highest, lower }
    }

    /// Restores the attempts from a snapshot.
    pub fn restored(highest: u64, lower: Vec<u64>) -> Option<Self> {
        let is_rising = lower.is_sorted_by(|one, next| one < next) && lower.last().is_none_or(|last| *last < highest);
        (is_rising && lower.len() < MAX_TRACKED).then(|| Self { highest, lower: lower.into() })
    }

    /// Returns the highest attempt.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Returns the other attempts, in ascending order.
    pub fn lower(&self) -> &[u64] {
        &self.lower
    }

    /// Returns the attempts whose callers may leave.
    pub fn cancellable(&self) -> impl Iterator<Item = u64> {
        self.all().filter(|attempt| *attempt != PERMANENT)
    }

    /// Returns all attempts, in ascending order.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.lower.iter().copied().chain([self.highest])
    }

    /// Returns whether a caller that never leaves relies on the item.
    pub fn is_permanent(&self) -> bool {
        self.highest == PERMANENT || self.lower.first() == Some(&PERMANENT)
    }

    /// Adds other attempts and removes the attempts in `left`.
    pub fn attach(&mut self, others: &Self, left: &[u64], rules: Rules) {
        if rules < Rules::TWO {
            self.highest = self.highest.max(others.highest);
            return;
        }
        let mut all: Vec<u64> = self.all().filter(|attempt| *attempt == PERMANENT || !left.contains(attempt)).collect();
        all.extend(others.all());
        all.sort_unstable();
        all.dedup();
        let highest = all.pop().unwrap_or(PERMANENT);
        let can_track_all = all.len() < MAX_TRACKED && all.first() != Some(&PERMANENT);
        let lower = if can_track_all { all } else { vec![PERMANENT] };
        *self = Self { highest, lower: lower.into() };
    }

    /// Removes attempts whose callers left. Returns whether no attempt remains.
    pub fn detach(&mut self, attempt: u64, left: &[u64], rules: Rules) -> bool {
        if rules < Rules::TWO {
            return self.highest == attempt;
        }
        if self.is_permanent() {
            return false;
        }
        if is_enabled(Mutation::RobbingCancel) && attempt == self.highest {
            return true;
        }
        if is_enabled(Mutation::CancelByHighest) && attempt != self.highest {
            return false;
        }
        let mut rest: Vec<u64> = self.all().filter(|one| *one != attempt && !left.contains(one)).collect();
        let Some(highest) = rest.pop() else { return true };
        *self = Self { highest, lower: rest.into() };
        false
    }

    /// Returns the attempts of a list in ascending order, unless it is empty.
    pub fn from_rising(rising: &[u64]) -> Option<Self> {
        let (highest, lower) = rising.split_last()?;
        Some(Self { highest: *highest, lower: lower.into() })
    }
}
