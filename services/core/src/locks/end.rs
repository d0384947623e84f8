//! Ends holds.

use std::num::NonZeroU64;

use holdfast_primitives::attempts::Attempts;

use super::conditions::CameFrom;
use super::hold::Hold;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::sessions::NamedRequest;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{EventKind, Phase, Reason, RevokedReason};

/// The calls that a grant is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantContext<'a> {
    /// The attempts that rely on the grant.
    pub(super) attempts: &'a Attempts,
    /// Attempts at the same request whose callers left.
    pub(super) abandoned: &'a [u64],
    pub(super) request_id: Option<&'a str>,
    /// Whether there is capacity for the metadata of the request.
    pub(super) metadata_fits: bool,
    /// The hold that was given up to await a condition, if the grant is its lock again.
    pub(super) came_from: Option<&'a CameFrom>,
}

/// Why a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCause {
    Released,
    Expired,
    Deleted,
    Reset,
}

impl EndCause {
    fn event(self) -> EventKind {
        match self {
            Self::Released => EventKind::Released,
            Self::Expired => EventKind::Expired,
            Self::Deleted => EventKind::Deleted,
            Self::Reset => EventKind::Reset,
        }
    }

    /// Returns the reason that is sent to a session whose hold it did not end itself.
    fn revoked(self) -> Option<RevokedReason> {
        match self {
            Self::Released => None,
            Self::Expired => Some(RevokedReason::Expired),
            Self::Deleted => Some(RevokedReason::Deleted),
            Self::Reset => Some(RevokedReason::Reset),
        }
    }
}

impl NamespaceTxn<'_> {
    /// Ends one hold, unless its owner gives it up and it is kept from others.
    pub(super) fn end_hold(&mut self, node: NodeId, owner: OwnerId, ending: EndCause) {
        if ending != EndCause::Released || !self.keep_from_others(node, owner) {
            self.finish_hold(node, owner, ending);
        }
    }

    /// Ends one hold, kept from others or not, with a revision of its own. The next grant run grants the requests that
    /// this unblocks.
    pub(super) fn finish_hold(&mut self, node: NodeId, owner: OwnerId, ending: EndCause) {
        // The units of the hold, its path, its owner and the event.
        self.ns.spend(4);
        let revision = self.common.next_revision();
        let phase = self.ns.hold(node, owner).map(|hold| hold.phase);
        if let (Some(Phase::Held), Some(reason)) = (phase, ending.revoked()) {
            self.record_revoked(node, owner, reason);
        }
        let hold = self.ns.remove_hold(node, owner);
        if let Some(deadline) = hold.deadline(node) {
            self.remove_deadline(deadline);
        }
        self.ns.tree.set_revision(node, revision);
        self.record_event(ending.event(), revision, owner, hold.token, &[(node, hold.mode)]);
        for request in hold.requests() {
            self.remove_claim(*request, node);
        }
        self.unblock_waiters(node, owner);
        let upgrades = self.upgrades_of(node, owner);
        let paths = self.ns.tree.len();
        self.ns.tree.prune(node);
        // The units of those above it that nothing else is below; it takes less to remove a path than to add it.
        self.ns.spend(paths.saturating_sub(self.ns.tree.len()) / 2);
        for position in upgrades {
            self.end_wait(position, Reason::Upgrade);
        }
        self.ns.remove_if_idle(owner);
    }

    /// Ends a hold by force, or its current phase, at a deadline that has passed.
    pub(super) fn end_due_hold(&mut self, node: NodeId, owner: OwnerId, at_ms: u64) {
        let forced_at_ms = self.ns.hold(node, owner).and_then(Hold::forced_at_ms);
        match forced_at_ms.is_some_and(|forced_at_ms| forced_at_ms <= at_ms) {
            true => self.finish_hold(node, owner, EndCause::Deleted),
            false => self.end_phase(node, owner, at_ms),
        }
    }

    /// Ends the current phase of a hold whose deadline passed or whose session expired.
    pub(super) fn end_phase(&mut self, node: NodeId, owner: OwnerId, from_ms: u64) {
        let hold = self.ns.hold(node, owner).expect("a hold that is due is there");
        let kept_until_ms = hold.kept_after(from_ms);
        if !hold.is_held() || (hold.transition_ms == 0 && kept_until_ms.is_none()) {
            let ending = if hold.is_kept() { EndCause::Released } else { EndCause::Expired };
            return self.finish_hold(node, owner, ending);
        }
        self.record_revoked(node, owner, RevokedReason::Expired);
        self.change_hold(node, owner, |hold| {
            hold.phase = Phase::Transition;
            let ends_at_ms = from_ms.saturating_add(hold.transition_ms.into());
            hold.deadline_ms = NonZeroU64::new(kept_until_ms.map_or(ends_at_ms, |until_ms| until_ms.max(ends_at_ms)));
        });
    }

    /// Notifies a session that it lost a hold.
    pub(super) fn record_revoked(&mut self, node: NodeId, owner: OwnerId, reason: RevokedReason) {
        let Some(session) = self.ns.owners.name(owner).session() else { return };
        // A session that ended was already notified of its end.
        if self.ns.ending_sessions.contains_key(&session.number) {
            return;
        }
        let token = self.ns.hold(node, owner).map_or(0, |hold| hold.token);
        self.effects.revoked(&self.ns.id, &session.session_id, self.ns.tree.path_of(node), token, reason);
    }

    /// Removes that path from a granted request. Removes the request with its last claim.
    pub(super) fn remove_claim(&mut self, request: u32, node: NodeId) {
        let granted = self.ns.granted_requests.get_mut(request);
        granted.live.remove(node);
        if !granted.live.is_empty() {
            return;
        }
        let granted = self.ns.granted_requests.remove(request);
        self.ns.charged.requests -= granted.charge();
        if let Some(session) = self.ns.session_mut(granted.owner) {
            session.requests.remove(granted.request_id.as_str(), NamedRequest::Granted(request));
        }
    }

    /// Returns the owner's waiting requests that would upgrade that hold.
    pub(super) fn upgrades_of(&self, node: NodeId, owner: OwnerId) -> Vec<QueuePosition> {
        let Some(awaits) = self.ns.owners.get(owner).waits.as_deref() else { return Vec::new() };
        let there = awaits.claims.range((node, QueuePosition::FIRST)..(node, QueuePosition::AFTER_UPGRADES));
        there.map(|(_, position)| *position).collect()
    }
}
