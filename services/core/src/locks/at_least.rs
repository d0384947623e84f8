//! Keeps what an owner has given up from other owners until so long after its grant as its request asked for.
//!
//! The hold stays, in its transition, and its owner has it no more: no request claims it, it can't be extended, it
//! closes no cycle, and nobody is asked to release it. Its owner may take it again; that is a new hold with a new
//! token, which is kept from others no shorter than the old one.

use std::num::NonZeroU64;

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{EventKind, Phase, Reason};

impl Namespace {
    /// Returns whether the owner has a hold there that is not only kept from others.
    pub(super) fn has_unreleased(&self, node: NodeId, owner: OwnerId) -> bool {
        self.hold(node, owner).is_some_and(|hold| !hold.is_kept())
    }
}

impl NamespaceTxn<'_> {
    /// Keeps a hold from others that its owner gives up, if its time is not over. Returns whether it is kept.
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

    /// Ends what is kept of the owner's holds at some paths, because it takes them again. Returns the shard clock until
    /// which each new hold is kept from others at least; nothing if none is kept.
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
