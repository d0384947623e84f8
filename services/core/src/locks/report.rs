//! The report of a resumed session's client, from its first part until everything else of the session has ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_primitives::permits::PermitItem;

use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::sessions::{NamedRequest, Session};
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use super::waiting::WaitingRequest;
use crate::{FencingToken, RevokedReason};

/// What stays of a session. Names only state that existed when the report named it, so its size is proportional to the
/// state of the session, and it is not charged to the account.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// The listed holds. No later hold of the same node has the same token, so the entry of a hold that has ended has
    /// no effect.
    listed: BTreeSet<(NodeId, FencingToken)>,
    /// The holds that pending requests claim.
    claimed: BTreeSet<(NodeId, FencingToken)>,
    /// The ids of the pending requests.
    pending: BTreeSet<Box<str>>,
    /// The listed holds of semaphores.
    permits: BTreeSet<FencingToken>,
}

impl Report {
    /// Adds a hold that the client lists.
    pub(super) fn list(&mut self, node: NodeId, token: FencingToken) {
        self.listed.insert((node, token));
    }

    /// Adds a hold that a pending request claims.
    pub(super) fn claim(&mut self, node: NodeId, token: FencingToken) {
        self.claimed.insert((node, token));
    }

    /// Adds a hold of a semaphore that the client lists.
    pub(super) fn list_permits(&mut self, token: FencingToken) {
        self.permits.insert(token);
    }

    /// Returns the listed holds of semaphores.
    pub(super) fn permits(&self) -> impl Iterator<Item = FencingToken> {
        self.permits.iter().copied()
    }

    /// Returns whether a hold of a semaphore, or a wait for one, stays.
    pub(super) fn keeps_permits(&self, permits: &PermitItem<'_>) -> bool {
        let is_listed = permits.token.is_some_and(|token| self.permits.contains(&token));
        is_listed || self.is_pending(Some(permits.request_id))
    }

    /// Adds a pending request.
    pub(super) fn add_pending(&mut self, request_id: &str) {
        self.pending.insert(request_id.into());
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = &str> {
        self.pending.iter().map(|request_id| &**request_id)
    }

    pub(super) fn is_pending(&self, request_id: Option<&str>) -> bool {
        request_id.is_some_and(|request_id| self.pending.contains(request_id))
    }

    /// Returns whether the client lists the hold.
    pub(super) fn lists(&self, node: NodeId, token: FencingToken) -> bool {
        self.listed.contains(&(node, token))
    }

    /// Returns whether a pending request claims the hold.
    pub(super) fn claims(&self, node: NodeId, token: FencingToken) -> bool {
        self.claimed.contains(&(node, token))
    }

    /// Returns whether the hold stays.
    pub(super) fn keeps(&self, node: NodeId, token: FencingToken) -> bool {
        self.lists(node, token) || self.claims(node, token)
    }

    /// Returns whether a pending request claims a hold of this path.
    pub(super) fn claims_path(&self, namespace: &Namespace, node: NodeId) -> bool {
        let mut there = self.claimed.range((node, FencingToken::MIN)..=(node, FencingToken::MAX));
        there.any(|(_, token)| namespace.tree.get(node).holds.of_token(*token).is_some_and(|hold| !hold.is_kept()))
    }
}

impl NamespaceTxn<'_> {
    /// Notifies the session of a hold that its client has listed, if a request that it does not list upgrades it: the
    /// upgraded hold will end.
    pub(super) fn revoke_listed(&mut self, position: QueuePosition, waiting: &WaitingRequest) {
        let Some(node) = waiting.nodes.first().copied().filter(|_| position.is_upgrade()) else { return };
        let hold = self.ns.hold(node, waiting.owner);
        let is_lost = self.ns.report_of(waiting.owner).zip(hold).is_some_and(|(report, hold)| {
            report.lists(node, hold.token) && !report.is_pending(waiting.request_id.as_deref())
        });
        if is_lost {
            self.record_revoked(node, waiting.owner, RevokedReason::Duplicate);
        }
    }
}

impl Namespace {
    /// Returns the open session that the owner belongs to.
    fn session_of(&self, owner: OwnerId) -> Option<&Session> {
        let name = self.owners.name(owner).session()?;
        self.sessions.get(&name.session_id).filter(|session| session.facts.number == name.number)
    }

    /// Returns the report of the session that the owner belongs to.
    pub(super) fn report_of(&self, owner: OwnerId) -> Option<&Report> {
        self.session_of(owner)?.report.as_deref()
    }

    /// If a report names this request as pending, which was granted since, adds its holds.
    pub(super) fn claim_reported(&mut self, owner: OwnerId, request_id: &str) {
        if !self.report_of(owner).is_some_and(|report| report.is_pending(Some(request_id))) {
            return;
        }
        let Some(session) = self.session_mut(owner) else { return };
        let Some(mut report) = session.report.take() else { return };
        let granted = self.session_of(owner).and_then(|session| self.request_named(&session.requests, request_id));
        if let Some(NamedRequest::Granted(granted)) = granted {
            self.add_claims(Arc::make_mut(&mut report), granted);
        }
        if let Some(session) = self.session_mut(owner) {
            session.report = Some(report);
        }
    }

    /// Adds the holds of a granted request that is pending.
    pub(super) fn add_claims(&self, report: &mut Report, request: u32) {
        let granted = self.granted_requests.get(request);
        self.spend(1 + granted.live.len());
        for node in granted.live.nodes() {
            if let Some(hold) = self.hold(node, granted.owner) {
                report.claim(node, hold.token);
            }
        }
    }

    /// Returns whether a session is being compared with a report. It is granted nothing new meanwhile.
    pub(super) fn has_report(&self, session_id: &str) -> bool {
        self.sessions.get(session_id).is_some_and(|session| session.report.is_some())
    }
}
