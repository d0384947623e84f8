//! Applies grants.

use std::num::NonZeroU64;

use holdfast_mutations::{Mutation, is_enabled};
use holdfast_primitives::attempts::Attempts;

use super::end::GrantContext;
use super::hold::{Hold, HoldTerms, NO_REQUEST};
use super::named_requests::LiveClaims;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::sessions::{GrantedRequest, NamedRequest};
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use super::waiting::BlockedOn;
use crate::{Claim, EventKind, FencingToken, Mode, Phase, Reason};

impl NamespaceTxn<'_> {
    /// Grants claims that nothing blocks, each with its node: new holds, extensions and mode changes. All new holds share one revision,
    /// which is their fencing token. If nothing is new, returns the token of the first hold.
    pub(super) fn grant(
        &mut self,
        owner: OwnerId,
        (claims, nodes): (&[Claim], &[NodeId]),
        terms: &HoldTerms,
        call: GrantContext<'_>,
    ) -> FencingToken {
        let deadline_ms = terms.ttl_ms.and_then(|ttl_ms| NonZeroU64::new(self.common.clock_ms.saturating_add(ttl_ms)));
        self.ns.spend(claims.len());
        let request = self.insert_granted_request(owner, claims.len(), call);
        // A request with an id is rolled back by that id.
        let by_id = Attempts::of(0);
        let call = if request.is_some() { GrantContext { attempts: &by_id, ..call } } else { call };
        let mut new: Vec<(NodeId, Mode)> = Vec::new();
        let (mut token, mut found) = (None, None);
        // Before the grants: the event of each end precedes that of the grant.
        let kept = self.end_all_kept(nodes, owner);
        for (index, (node, claim)) in nodes.iter().zip(claims).enumerate() {
            let kept_until_ms = kept.get(index).copied().flatten();
            let held = self.ns.hold(*node, owner).map(|hold| (hold.mode, hold.token));
            match held {
                Some((mode, held)) if mode == claim.mode => {
                    self.extend(*node, owner, deadline_ms, terms, call);
                    found = found.or(Some(held));
                }
                Some((Mode::Write, held)) => {
                    self.extend(*node, owner, deadline_ms, terms, call);
                    self.downgrade(*node, owner);
                    found = found.or(Some(held));
                }
                Some((Mode::Read, _)) => {
                    let token = *token.get_or_insert_with(|| self.common.next_revision());
                    self.upgrade(*node, owner, deadline_ms, terms, call, token);
                    new.push((*node, claim.mode));
                }
                None => {
                    let token = *token.get_or_insert_with(|| self.common.next_revision());
                    let mut hold = self.new_hold(owner, claim.mode, token, deadline_ms);
                    hold.set_attempts(call.attempts.clone());
                    hold.set_at_least(self.common.clock_ms, terms.at_least_ms, kept_until_ms);
                    self.add_hold(*node, hold, terms);
                    new.push((*node, claim.mode));
                }
            }
            self.claim_hold(*node, owner, claim.mode, request);
            if let Some(came_from) = call.came_from {
                self.change_hold(*node, owner, |hold| hold.remember(came_from.clone()));
            }
        }
        if let Some(token) = token {
            self.record_event(EventKind::Acquired, token, owner, token, &new);
        }
        let token = token.or(found).expect("a request has claims, and each is new or was found");
        if let Some(request) = request {
            self.ns.granted_requests.get_mut(request).token = token;
        }
        self.end_contradicted_waits(owner, nodes);
        token
    }

    /// Returns a hold that nothing claims yet, without the terms of its request.
    pub(super) fn new_hold(
        &self,
        owner: OwnerId,
        mode: Mode,
        token: FencingToken,
        deadline_ms: Option<NonZeroU64>,
    ) -> Hold {
        Hold {
            owner,
            mode,
            phase: Phase::Held,
            direct: false,
            upgraded: false,
            transition_ms: 0,
            request: NO_REQUEST,
            token,
            locked_at_ms: self.wall_ms,
            deadline_ms,
            attempt: 0,
            extras: None,
        }
    }

    fn add_hold(&mut self, node: NodeId, mut hold: Hold, terms: &HoldTerms) {
        // The units of the hold, its path and the event. Its owner is found with its claim.
        self.ns.spend(3);
        hold.set_terms(terms, true);
        self.add_deadline(hold.deadline(node));
        self.ns.tree.set_revision(node, hold.token);
        self.ns.add_hold(node, hold);
        self.ns.count_grant();
    }

    /// Extends the owner's hold with the terms of this call. A permanent hold stays permanent, even if this caller may
    /// leave.
    fn extend(
        &mut self,
        node: NodeId,
        owner: OwnerId,
        deadline_ms: Option<NonZeroU64>,
        terms: &HoldTerms,
        call: GrantContext<'_>,
    ) {
        let (rules, clock_ms) = (self.rules, self.common.clock_ms);
        self.change_hold(node, owner, |hold| {
            hold.extend_at_least(terms.at_least_ms, clock_ms);
            hold.phase = Phase::Held;
            hold.deadline_ms = deadline_ms;
            hold.set_terms(terms, call.metadata_fits);
            hold.attach(call.attempts, call.abandoned, rules);
        });
    }

    fn upgrade(
        &mut self,
        node: NodeId,
        owner: OwnerId,
        deadline_ms: Option<NonZeroU64>,
        terms: &HoldTerms,
        call: GrantContext<'_>,
        token: FencingToken,
    ) {
        let (wall_ms, rules, clock_ms) = (self.wall_ms, self.rules, self.common.clock_ms);
        self.change_hold(node, owner, |hold| {
            let before_ms = hold.at_least().map(|at_least| at_least.until_ms);
            hold.set_at_least(clock_ms, terms.at_least_ms, before_ms);
            hold.mode = Mode::Write;
            hold.phase = Phase::Held;
            hold.token = token;
            hold.locked_at_ms = wall_ms;
            hold.deadline_ms = deadline_ms;
            hold.set_terms(terms, call.metadata_fits);
            hold.attach_to_upgrade(call.attempts, call.abandoned, rules);
        });
        self.ns.owner_changed(owner);
        self.ns.tree.set_revision(node, token);
    }

    /// Downgrades WRITE to READ and keeps the fencing token. This may unblock other requests.
    pub(super) fn downgrade(&mut self, node: NodeId, owner: OwnerId) {
        let revision = self.common.next_revision();
        let (mut token, rules) = (0, self.rules);
        self.change_hold(node, owner, |hold| {
            hold.mode = Mode::Read;
            if is_enabled(Mutation::AtLeastCut) {
                hold.change_extras(|rare| rare.at_least = None);
            }
            hold.attach_to_downgrade(rules);
            token = hold.token;
        });
        self.ns.owner_changed(owner);
        self.ns.tree.set_revision(node, revision);
        self.record_event(EventKind::Acquired, revision, owner, token, &[(node, Mode::Read)]);
        self.unblock_waiters(node, owner);
    }

    /// Schedules requests that are blocked on a hold that ended or was downgraded.
    pub(super) fn unblock_waiters(&mut self, node: NodeId, owner: OwnerId) {
        if self.ns.waits.is_empty() {
            return;
        }
        self.ns.blocked_index.unblock(BlockedOn::Hold(node, owner));
        self.ns.unblock_ancestors(node);
    }

    /// Records a granted request of a session that has a request id.
    pub(super) fn insert_granted_request(
        &mut self,
        owner: OwnerId,
        claimed: usize,
        call: GrantContext<'_>,
    ) -> Option<u32> {
        let request_id = call.request_id?;
        self.ns.owners.name(owner).session()?;
        let granted = GrantedRequest {
            request_id: request_id.into(),
            owner,
            claimed: u32::try_from(claimed).unwrap_or(u32::MAX),
            token: 0,
            attempts: call.attempts.clone(),
            live: LiveClaims::None,
        };
        self.ns.charged.requests += granted.charge();
        let request = self.ns.granted_requests.insert(granted);
        let session = self.ns.session_mut(owner)?;
        session.requests.insert(request_id, NamedRequest::Granted(request));
        Some(request)
    }

    pub(super) fn claim_hold(&mut self, node: NodeId, owner: OwnerId, mode: Mode, request: Option<u32>) {
        self.ns.tree.change_hold(node, owner, |hold| match request {
            Some(request) => hold.claim_by(request),
            None => hold.direct = true,
        });
        if let Some(request) = request {
            self.ns.granted_requests.get_mut(request).live.insert(node, mode);
        }
    }

    /// Ends other waiting requests of the owner that claim one of these paths in another mode than it now holds. They
    /// can't be granted any more. Requests that wait to change the mode stay.
    pub(super) fn end_contradicted_waits(&mut self, owner: OwnerId, nodes: &[NodeId]) {
        let mut ended: Vec<QueuePosition> = Vec::new();
        let Some(awaits) = self.ns.owners.get(owner).waits.as_deref() else { return };
        for node in nodes {
            let mode = self.ns.hold(*node, owner).map(|hold| hold.mode);
            let there = awaits.claims.range((*node, QueuePosition::AFTER_UPGRADES)..=(*node, QueuePosition::LAST));
            ended.extend(there.map(|(_, position)| *position).filter(|position| {
                let waiting = self.ns.waiting(*position);
                let mut claims = waiting.nodes.iter().zip(&waiting.claims);
                claims.any(|(other, claim)| other == node && Some(claim.mode) != mode)
            }));
        }
        ended.sort_unstable();
        ended.dedup();
        ended.into_iter().for_each(|position| self.end_wait(position, Reason::Upgrade));
    }
}
