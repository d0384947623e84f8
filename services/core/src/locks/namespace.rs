//! The locks of one open namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::hold::Hold;
use crate::{FencingToken, Limits, Mode, Owner, Path, Revision};

/// One incarnation of a namespace, from its open to its purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) limits: Limits,
    /// How many holds its locks have together.
    pub(super) holds: u64,
    /// What is held. The index of deadlines shares the paths.
    pub(super) locks: BTreeMap<Arc<Path>, Lock>,
}

/// A lock that somebody holds: one writer, or readers in order of arrival, which is that of their tokens. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) revision: Revision,
    pub(super) holds: Vec<Hold>,
}

impl Lock {
    /// The owner's hold. An owner has at most one of a path.
    pub(super) fn position_of(&self, owner: &Owner) -> Option<usize> {
        self.holds.iter().position(|hold| hold.owner.is(owner))
    }

    pub(super) fn position_of_token(&self, token: FencingToken) -> Option<usize> {
        self.holds.binary_search_by_key(&token, |hold| hold.token).ok()
    }

    /// Gives back what a crowd of readers left behind.
    fn shrink(&mut self) {
        if self.holds.len().saturating_mul(4) <= self.holds.capacity() {
            self.holds.shrink_to(self.holds.len().saturating_mul(2));
        }
    }
}

impl Namespace {
    pub(super) fn new(name: &str, limits: &Limits) -> Self {
        Self { name: name.to_owned(), limits: limits.clone(), holds: 0, locks: BTreeMap::new() }
    }

    /// The path as the lock has it, or a new one for a lock that nobody holds.
    pub(super) fn shared_path(&self, path: &Path) -> Arc<Path> {
        self.locks.get_key_value(path).map_or_else(|| Arc::new(path.clone()), |(path, _)| Arc::clone(path))
    }

    pub(super) fn add(&mut self, path: Arc<Path>, hold: Hold) {
        let revision = hold.token;
        match self.locks.get_mut(&path) {
            Some(lock) => {
                let all_read = hold.mode == Mode::Read && lock.holds.iter().all(|other| other.mode == Mode::Read);
                assert!(all_read, "nobody is let in beside a writer");
                lock.holds.push(hold);
                lock.revision = revision;
            }
            // Exactly one hold's memory: most locks never have a second one.
            None => drop(self.locks.insert(path, Lock { revision, holds: vec![hold] })),
        }
        self.holds += 1;
    }

    pub(super) fn hold_mut(&mut self, path: &Path, index: usize) -> &mut Hold {
        let lock = self.locks.get_mut(path).expect("the hold was just found");
        &mut lock.holds[index]
    }

    /// Takes one hold out, and the lock with the last one.
    pub(super) fn remove(&mut self, path: &Path, index: usize, revision: Revision) -> Hold {
        let lock = self.locks.get_mut(path).expect("the hold was just found");
        let hold = lock.holds.remove(index);
        lock.revision = revision;
        lock.shrink();
        if lock.holds.is_empty() {
            self.locks.remove(path);
        }
        self.holds -= 1;
        hold
    }

    /// Takes a whole lock out.
    pub(super) fn remove_all(&mut self, path: &Path) -> Option<(Arc<Path>, Lock)> {
        let (path, lock) = self.locks.remove_entry(path)?;
        self.holds -= lock.holds.len() as u64;
        Some((path, lock))
    }
}
