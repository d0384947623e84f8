//! The kinds of things in a namespace, and sets of kinds.

use serde::{Deserialize, Serialize};

/// A kind of thing that has a path. Each kind has a table of its own: a lock and a latch with the same path have
/// nothing to do with one another, and only the paths of locks form a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A lock.
    Lock,
    /// A semaphore.
    Semaphore,
    /// A latch.
    Latch,
    /// A pool of named members.
    Pool,
    /// A request to release a hold. It has no path of its own and no table: events about such requests are of this
    /// kind.
    Request,
    /// A barrier.
    Barrier,
    /// A condition of a lock, which has the lock's path.
    Condition,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Lock, Self::Semaphore, Self::Latch, Self::Pool, Self::Request, Self::Barrier, Self::Condition];

    /// Returns the public name of one thing.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
            Self::Latch => "latch",
            Self::Pool => "pool",
            Self::Request => "request",
            Self::Barrier => "barrier",
            Self::Condition => "condition",
        }
    }

    /// Returns the public name of all things, as in paths of the API and in the parameter `kinds`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Lock => "locks",
            Self::Semaphore => "semaphores",
            Self::Latch => "latches",
            Self::Pool => "pools",
            Self::Request => "requests",
            Self::Barrier => "barriers",
            Self::Condition => "conditions",
        }
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kinds(u8);

impl Kinds {
    /// Locks only, with sessions: what watchers get that name no kinds.
    pub const LOCKS: Self = Self(1);
    /// Every kind, also those that later releases have.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns whether a kind is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & bit(kind) != 0
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Self {
        Self(kinds.into_iter().map(bit).fold(0, |all, one| all | one))
    }
}

fn bit(kind: Kind) -> u8 {
    match kind {
        Kind::Lock => 1,
        Kind::Semaphore => 2,
        Kind::Latch => 4,
        Kind::Pool => 8,
        Kind::Request => 64,
        Kind::Barrier => 16,
        Kind::Condition => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        assert!(Kind::ALL.iter().all(|kind| Kinds::ALL.contains(*kind)));
        assert_eq!(Kinds::from_iter([Kind::Lock]), Kinds::LOCKS);
        let some = Kinds::from_iter([Kind::Latch, Kind::Latch]);
        assert_eq!(Kind::ALL.map(|kind| some.contains(kind)), [false, false, true, false, false, false, false]);
    }
}
