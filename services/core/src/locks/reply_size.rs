//! How much an answer shows, and to whom. What is shown is read from the state right after a step and never changes it,
//! so whoever owes nobody an answer leaves it out.

use serde::Serialize;

use super::LocksCore;
use super::namespace::Namespace;
use super::txn::NamespaceTxn;
use crate::{LockView, NotGranted, Path, Reason, Revision, codec};

/// Bytes of an answer with what became of a request and the locks that it is about. Only paths can take more.
const MAX_BYTES: usize = 64 * 1024;
/// Readers in the answer to a question about one lock.
pub(super) const READERS_OF_GET: usize = 1_000;
/// Their bytes.
const MAX_BYTES_OF_GET: usize = 4 * 1024 * 1024;
/// Of the answer about a request, those who are in the way.
const MAX_BYTES_OF_BLOCKERS: usize = 24 * 1024;
/// Likewise, a cycle of waits.
const MAX_BYTES_OF_CYCLE: usize = 16 * 1024;
/// All of an answer but its locks, when it names neither.
const BYTES_OF_REST: usize = 64;
/// A lock without its path and its holders, at most.
const BYTES_OF_LOCK: usize = 64;

/// How many bytes, as they are encoded, may still be shown.
pub(super) struct ByteBudget(usize);

impl ByteBudget {
    pub(super) fn unlimited() -> Self {
        Self(usize::MAX)
    }

    /// That of the answer to a question about one lock.
    pub(super) fn of_get() -> Self {
        Self(MAX_BYTES_OF_GET)
    }

    /// Whether something fits; if so, what it takes is gone.
    pub(super) fn take(&mut self, shown: &impl Serialize) -> bool {
        let left = self.0.checked_sub(codec::size(shown));
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// The first ones that fit.
fn cut<T: Serialize>(shown: Vec<T>, max_bytes: usize) -> Vec<T> {
    let mut left = ByteBudget(max_bytes);
    shown.into_iter().take_while(|one| left.take(one)).collect()
}

/// Why a request is not granted, and no more.
pub(super) fn bare(reason: Reason) -> NotGranted {
    NotGranted { reason, blockers: Vec::new(), queue_position: None, cycle: Vec::new() }
}

/// The same with no more than fits into an answer.
pub(super) fn fitting(shown: NotGranted) -> NotGranted {
    let NotGranted { reason, blockers, queue_position, cycle } = shown;
    let (blockers, cycle) = (cut(blockers, MAX_BYTES_OF_BLOCKERS), cut(cycle, MAX_BYTES_OF_CYCLE));
    NotGranted { reason, blockers, queue_position, cycle }
}

impl Namespace {
    /// Locks as they are now, as many of their holders as fit: of readers the first are shown, and a writer without its
    /// metadata when it has too much. `not_granted` says whether the answer names who is in the way as well.
    pub(super) fn views(&self, paths: &[&Path], revision: Revision, not_granted: bool) -> Vec<LockView> {
        let paths_take: usize = paths.iter().map(|path| codec::size(path) + BYTES_OF_LOCK).sum();
        let others = if not_granted { MAX_BYTES_OF_BLOCKERS + MAX_BYTES_OF_CYCLE } else { 0 };
        let mut left = ByteBudget(MAX_BYTES.saturating_sub(BYTES_OF_REST + others + paths_take));
        paths.iter().map(|path| self.view(path, self.bounds.readers_shown, &mut left, revision)).collect()
    }
}

impl NamespaceTxn<'_> {
    /// Locks as they are now, for the answer; none when nobody is to see it.
    pub(super) fn views(&mut self, paths: &[&Path], not_granted: bool) -> Vec<LockView> {
        if !self.shows {
            return Vec::new();
        }
        self.ns.shown += paths.len() as u64;
        self.ns.views(paths, self.state.revision, not_granted)
    }
}

impl LocksCore {
    /// Whether the answers to the commands that follow are to be seen by somebody.
    pub(crate) fn show(&mut self, shows: bool) {
        self.shows = shows;
    }

    /// How many locks were shown in answers to commands, since the start of the process.
    pub fn locks_shown(&self) -> u64 {
        self.slots.values().map(|slot| self.namespaces.get(*slot).shown).sum()
    }
}
