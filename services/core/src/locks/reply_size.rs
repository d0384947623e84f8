//! How much an answer shows, and to whom. What is shown is read from the state right after a step and never changes it,
//! so whoever owes nobody an answer leaves it out.

use serde::Serialize;

use super::LocksState;
use super::namespace::Namespace;
use super::txn::NamespaceTxn;
use crate::{LockView, Path, Reason, Refused, Revision, codec};

/// Bytes of an answer with what became of a request and the locks that it is about. Only paths can take more.
const MAX_REPLY_BYTES: usize = 64 * 1024;
/// Readers in the answer to a question about one lock.
pub(super) const MAX_READERS_IN_GET: usize = 1_000;
/// Their bytes.
const MAX_GET_BYTES: usize = 4 * 1024 * 1024;
/// Of the answer about a request, those who are in the way.
const MAX_BLOCKERS_BYTES: usize = 24 * 1024;
/// Likewise, a cycle of waits.
const MAX_CYCLE_BYTES: usize = 16 * 1024;
/// All of an answer but its locks, when it names neither.
const REST_BYTES: usize = 64;
/// A lock without its path and its holders, at most.
const LOCK_BYTES: usize = 64;

/// How many bytes, as they are encoded, may still be shown.
pub(super) struct ByteBudget(usize);

impl ByteBudget {
    pub(super) fn unlimited() -> Self {
        Self(usize::MAX)
    }

    /// That of the answer to a question about one lock.
    pub(super) fn for_get() -> Self {
        Self(MAX_GET_BYTES)
    }

    /// Whether something fits; if so, what it takes is gone.
    pub(super) fn try_take(&mut self, shown: &impl Serialize) -> bool {
        let left = self.0.checked_sub(codec::size(shown));
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// The first ones that fit.
fn fitting_prefix<T: Serialize>(shown: Vec<T>, max_bytes: usize) -> Vec<T> {
    let mut left = ByteBudget(max_bytes);
    shown.into_iter().take_while(|one| left.try_take(one)).collect()
}

/// Why a request is not granted, and no more.
pub(super) fn reason_only(reason: Reason) -> Refused {
    Refused { reason, blockers: Vec::new(), queue_position: None, cycle: Vec::new() }
}

/// The same with no more than fits into an answer.
pub(super) fn truncated(shown: Refused) -> Refused {
    let Refused { reason, blockers, queue_position, cycle } = shown;
    let (blockers, cycle) = (fitting_prefix(blockers, MAX_BLOCKERS_BYTES), fitting_prefix(cycle, MAX_CYCLE_BYTES));
    Refused { reason, blockers, queue_position, cycle }
}

impl Namespace {
    /// Locks as they are now, as many of their holders as fit: of readers the first are shown, and a writer without its
    /// metadata when it has too much. `not_granted` says whether the answer names who is in the way as well.
    pub(super) fn views(&self, paths: &[&Path], revision: Revision, not_granted: bool) -> Vec<LockView> {
        let paths_take: usize = paths.iter().map(|path| codec::size(path) + LOCK_BYTES).sum();
        let others = if not_granted { MAX_BLOCKERS_BYTES + MAX_CYCLE_BYTES } else { 0 };
        let mut left = ByteBudget(MAX_REPLY_BYTES.saturating_sub(REST_BYTES + others + paths_take));
        paths.iter().map(|path| self.view(path, self.bounds.max_readers_in_reply, &mut left, revision)).collect()
    }
}

impl NamespaceTxn<'_> {
    /// Locks as they are now, for the answer; none when nobody is to see it.
    pub(super) fn views(&mut self, paths: &[&Path], not_granted: bool) -> Vec<LockView> {
        if !self.with_views {
            return Vec::new();
        }
        self.ns.views_built += paths.len() as u64;
        self.ns.views(paths, self.common.revision, not_granted)
    }
}

impl LocksState {
    /// Whether the answers to the commands that follow are to be seen by somebody.
    pub(crate) fn set_with_views(&mut self, shows: bool) {
        self.with_views = shows;
    }

    /// How many locks were shown in answers to commands, since the start of the process.
    pub fn views_built(&self) -> u64 {
        self.slots.values().map(|slot| self.namespaces.get(*slot).views_built).sum()
    }
}
