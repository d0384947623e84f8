//! Limits the size of responses. Views are read from the state right after a step and never change it, so a replica
//! without a caller to reply to omits them.

use holdfast_primitives::reply_size::ByteBudget;
use serde::Serialize;

use super::LocksState;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::txn::NamespaceTxn;
use crate::{LockView, Path, Refused, Revision, codec};

/// Maximum number of readers in the response to a query for one lock.
pub(super) const MAX_READERS_IN_GET: usize = 1_000;
/// Maximum bytes of these readers.
pub(super) const MAX_GET_BYTES: usize = 4 * 1024 * 1024;
/// The part of [`holdfast_primitives::reply_size::MAX_REPLY_BYTES`] for blockers.
const MAX_BLOCKERS_BYTES: usize = 24 * 1024;
/// The part of [`holdfast_primitives::reply_size::MAX_REPLY_BYTES`] for a deadlock cycle.
const MAX_CYCLE_BYTES: usize = 16 * 1024;
/// Maximum bytes of a lock without its path and its holders.
const LOCK_BYTES: usize = 64;

/// Returns the first items that fit.
fn fitting_prefix<T: Serialize>(shown: Vec<T>, max_bytes: usize) -> Vec<T> {
    let mut left = ByteBudget::new(max_bytes);
    shown.into_iter().take_while(|one| left.try_take(one)).collect()
}

/// Truncates a refusal to the size limits.
pub(super) fn truncated(shown: Refused) -> Refused {
    let Refused { reason, blockers, queue_position, cycle } = shown;
    let (blockers, cycle) = (fitting_prefix(blockers, MAX_BLOCKERS_BYTES), fitting_prefix(cycle, MAX_CYCLE_BYTES));
    Refused { reason, blockers, queue_position, cycle }
}

impl Namespace {
    /// Returns views of locks with as many holders as fit: the first readers, and a writer without its metadata if that
    /// is too large. `own` is among the readers if it is one. `not_granted` tells whether the response also contains
    /// blockers.
    pub(super) fn views(&self, paths: &[&Path], own: OwnerId, revision: Revision, not_granted: bool) -> Vec<LockView> {
        let paths_take: usize = paths.iter().map(|path| codec::size(path) + LOCK_BYTES).sum();
        let others = if not_granted { MAX_BLOCKERS_BYTES + MAX_CYCLE_BYTES } else { 0 };
        let mut left = ByteBudget::for_reply(others + paths_take);
        paths.iter().map(|path| self.view(path, own, &mut left, revision)).collect()
    }
}

impl NamespaceTxn<'_> {
    /// Returns views of locks for the response to an owner; none if no caller receives it.
    pub(super) fn views(&mut self, paths: &[&Path], own: OwnerId, not_granted: bool) -> Vec<LockView> {
        if !self.with_views {
            return Vec::new();
        }
        self.ns.views_built += paths.len() as u64;
        self.ns.views(paths, own, self.common.revision, not_granted)
    }
}

impl LocksState {
    /// Sets whether callers receive the responses to the following commands.
    pub(crate) fn set_with_views(&mut self, shows: bool) {
        self.with_views = shows;
    }

    /// Returns the number of lock views in responses to commands since the process started.
    pub fn views_built(&self) -> u64 {
        self.slots.values().map(|slot| self.namespaces.get(*slot).views_built).sum()
    }
}
