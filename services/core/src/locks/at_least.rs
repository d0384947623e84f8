//! Enforces the minimum hold time: a released hold blocks other owners until that time is over.
//!
//! The hold stays, in its transition, but its owner no longer has it: no request claims it, it can't be extended, it
//! closes no cycle, and no request to release concerns it. Its owner may acquire the lock again. The new hold has a new
//! token and blocks other owners at least as long as the old one.

use std::num::NonZeroU64;

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{EventKind, Phase, Reason};

impl Namespace {
    /// Returns true if the owner has a hold there that it has not released.
    pub(super) fn has_unreleased(&self, node: NodeId, owner: OwnerId) -> bool {
        self.hold(node, owner).is_some_and(|hold| !hold.is_kept())
    }
}

impl NamespaceTxn<'_> {
    /// Keeps a released hold if its minimum hold time is not over. Returns true if the hold is kept.
    pub(super) fn keep_from_others(&mut self, node: NodeId, owner: OwnerId) -> bool {
        let Some(hold) = self.ns.hold(node, owner) else { return false };
        let Some(until_ms) = hold.kept_after(self.common.clock_ms) else { return false };
        if hold.is_kept() {
            return true;
        }
        // The units of the hold, its path, its owner and its deadline.
        self.ns.spend(4);
        self.unclaim_requests(node, owner);
        self.change_hold(node, owner, |hold| {
            hold.confirm();
            (hold.direct, hold.phase) = (false, Phase::Transition);
            hold.deadline_ms = NonZeroU64::new(until_ms);
            hold.release_at_least();
        });
        self.ns.owner_changed(owner);
        for position in self.upgrades_of(node, owner) {
            self.end_wait(position, Reason::Upgrade);
        }
        true
    }

    /// Ends the owner's kept holds at some paths, because the owner acquires these again. Returns the shard clock until
    /// which each new hold must block other owners; nothing if no hold is kept.
    pub(super) fn end_all_kept(&mut self, nodes: &[NodeId], owner: OwnerId) -> Vec<Option<u64>> {
        if !nodes.iter().any(|node| self.ns.hold(*node, owner).is_some_and(Hold::is_kept)) {
            return Vec::new();
        }
        nodes.iter().map(|node| self.end_kept(*node, owner)).collect()
    }

    fn end_kept(&mut self, node: NodeId, owner: OwnerId) -> Option<u64> {
        let until_ms = self.ns.hold(node, owner).filter(|hold| hold.is_kept())?.kept_after(0);
        self.ns.spend(4);
        let revision = self.common.next_revision();
        let hold = self.ns.remove_hold(node, owner);
        if let Some(deadline) = hold.deadline(node) {
            self.remove_deadline(deadline);
        }
        self.record_event(EventKind::Released, revision, owner, hold.token, &[(node, hold.mode)]);
        self.unblock_waiters(node, owner);
        until_ms
    }
}
