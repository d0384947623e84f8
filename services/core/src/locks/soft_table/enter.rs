//! Enters claims that earlier leaders granted.

use std::sync::Arc;

use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::metadata::EncodedMetadata;

use super::reported::ReportedClaim;
use crate::locks::charge;
use crate::locks::end::GrantContext;
use crate::locks::hold::HoldTerms;
use crate::locks::sessions::NamedRequest;
use crate::locks::txn::NamespaceTxn;
use crate::{Owner, ReportedHold, ReportedRequest, RevokedReason};

impl NamespaceTxn<'_> {
    /// Enters a claim of a session under its token. Returns true if it was entered, false if it conflicts with a claim
    /// that was entered before.
    pub(super) fn enter(&mut self, session_id: &Arc<str>, reported: &ReportedClaim<'_>, transition_ms: u64) -> bool {
        self.try_enter(session_id, reported, transition_ms).is_some()
    }

    fn try_enter(&mut self, session_id: &Arc<str>, reported: &ReportedClaim<'_>, transition_ms: u64) -> Option<()> {
        let ReportedClaim { request, claim, is_known } = *reported;
        let name = Owner::Session { session_id: session_id.to_string(), holder: request.holder.clone() };
        let owner = self.ns.owner_id(&name);
        let spot = self.ns.tree.lookup(&claim.path);
        let own = spot.node().and_then(|node| self.ns.hold(node, owner)).map(|hold| (hold.token, hold.mode));
        let is_there = match own {
            Some(own) if own != (claim.fencing_token, claim.mode) => return None,
            Some(_) => true,
            None => false,
        };
        if !is_there && self.ns.conflict_reason(owner, claim.mode, &spot).is_some() {
            return None;
        }
        let session = self.ns.sessions.get(session_id)?;
        // Ids are unique in a session. What was entered of a request before may have ended since.
        let known = match self.ns.request_named(&session.requests, &request.request_id) {
            Some(NamedRequest::Granted(number)) if is_known && self.ns.granted_requests.get(number).owner == owner => {
                Some(number)
            }
            Some(_) => return None,
            None => None,
        };
        let owner = self.ns.intern_owner(&name);
        let node = self.ns.tree.ensure_path(&claim.path);
        if !is_there {
            let mut hold = self.new_hold(owner, claim.mode, claim.fencing_token, None);
            let terms = HoldTerms {
                ttl_ms: None,
                transition_ms: u32::try_from(transition_ms).unwrap_or(u32::MAX),
                metadata: EncodedMetadata::of(&request.metadata),
                requested_expires_at_ns: None,
                at_least_ms: charge::at_least_of(0),
            };
            hold.set_terms(&terms, true);
            self.ns.spend(3);
            // Readers are entered from the last one to the first.
            let revision = self.ns.tree.get(node).revision.max(claim.fencing_token);
            self.ns.tree.set_revision(node, revision);
            self.ns.add_hold(node, hold);
        }
        let number = match known {
            Some(number) => number,
            None => self.enter_request(owner, request, claim)?,
        };
        self.claim_hold(node, owner, claim.mode, Some(number));
        Some(())
    }

    fn enter_request(
        &mut self,
        owner: crate::locks::owner::OwnerId,
        request: &ReportedRequest,
        claim: &ReportedHold,
    ) -> Option<u32> {
        let attempts = Attempts::of(0);
        let (request_id, claimed) = (Some(request.request_id.as_str()), request.claims.len());
        let call =
            GrantContext { attempts: &attempts, abandoned: &[], request_id, metadata_fits: true, came_from: None };
        let claimed = claimed.max(usize::try_from(request.claimed).unwrap_or(usize::MAX));
        let number = self.insert_granted_request(owner, claimed, call)?;
        // The highest of its tokens is entered first.
        self.ns.granted_requests.get_mut(number).token = claim.fencing_token;
        Some(number)
    }

    /// Tells a session that a claim of it was not entered.
    pub(super) fn lose(&mut self, session_id: &Arc<str>, claim: &ReportedHold) {
        let (path, token) = (claim.path.clone(), claim.fencing_token);
        self.effects.revoked(&self.ns.id, session_id, path, token, RevokedReason::Duplicate);
    }
}
