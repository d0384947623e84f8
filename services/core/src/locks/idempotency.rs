//! Idempotency: a repeated request finds its queued request or its grant and is not applied twice.

use std::collections::BTreeMap;

use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::metadata::metadata_charge;
use holdfast_primitives::reply_size::{reason_only, refused};

use super::evaluate::Decision;
use super::hold::HoldTerms;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, WaitKey};
use super::queue::QueuePosition;
use super::reply_size::truncated;
use super::request::Request;
use super::sessions::NamedRequest;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use super::wait_graph::Dependents;
use crate::{AcquireOutcome, Claim, CommandError, Enqueued, FencingToken, Mode, Owner, Path, Reason, Refused, Wait};

impl NamespaceTxn<'_> {
    /// Returns the outcome of the request if an earlier call made it known. An old message of a session changes
    /// nothing.
    pub(super) fn repeated(
        &mut self,
        request: &Request<'_>,
        claims: &[Claim],
        left: &[u64],
        is_new: bool,
    ) -> Result<Option<AcquireOutcome>, CommandError> {
        let named = self.ns.named_request(request.owner, request.request_id, claims)?;
        if named.is_some_and(|named| self.ns.is_request_swept(named)) {
            return Err(CommandError::Busy(
                "what the request got, or its place in the queue, is being released".into(),
            ));
        }
        match named {
            Some(NamedRequest::Waiting(position)) => Ok(Some(self.repeat_wait(request, position, left, is_new))),
            Some(NamedRequest::Granted(granted)) => Ok(Some(self.repeat_grant(request, granted, left, is_new))),
            // An id of a request that awaits a condition is taken.
            Some(NamedRequest::Awaiting(_)) | None => Ok(None),
        }
    }

    /// Applies the terms and the wait limit of the newest call. A call that does not wait leaves the limit unchanged.
    fn repeat_wait(
        &mut self,
        request: &Request<'_>,
        position: QueuePosition,
        left: &[u64],
        is_new: bool,
    ) -> AcquireOutcome {
        let (waits, rules) = (!matches!(request.wait, Wait::No | Wait::For(0)), self.rules);
        let ends_at_ms = self.ends_at_ms(request.wait);
        let is_newest = request.attempt >= self.ns.waiting(position).attempts.highest();
        if is_new && (!waits || is_newest) {
            self.update_wait_terms(position, HoldTerms::of(request));
        }
        let waiting = self.ns.waiting_mut(position);
        if is_new && waits {
            waiting.attempts.attach(&Attempts::of(request.attempt), left, rules);
        }
        if is_new && waits && is_newest {
            let before = std::mem::replace(&mut waiting.ends_at_ms, ends_at_ms);
            self.remove_wait_end(position, before);
            self.add_wait_end(position, ends_at_ms);
        }
        let attempt = self.ns.waiting(position).attempts.highest();
        let (not_granted, is_free) = self.ns.queue_status(position, self.with_views);
        let mut not_granted = truncated(not_granted);
        if is_free {
            // The reply reports the current position; the waiting call receives the grant.
            self.ns.blocked_index.schedule(position);
            self.run_grant_loop();
        }
        if waits {
            return AcquireOutcome::Enqueued(Box::new(Enqueued { wait: position.wait(), attempt, not_granted }));
        }
        not_granted.reason = Reason::Queued;
        refused(not_granted)
    }

    /// Updates the terms of a waiting request. Without capacity for the new metadata, the old metadata stays. The time
    /// for which its holds are kept from others stays as it was: a repeat neither adds nor takes any.
    pub(super) fn update_wait_terms(&mut self, position: QueuePosition, mut terms: HoldTerms) {
        let waiting = self.ns.waiting(position);
        terms.at_least_ms = waiting.terms.at_least_ms;
        let (bytes, claims) = (terms.metadata.len(), waiting.claims.len() as u64);
        let more = metadata_charge(bytes).saturating_sub(metadata_charge(waiting.terms.metadata.len()));
        if !self.has_capacity(more * claims) {
            terms.metadata = waiting.terms.metadata.clone();
        }
        let waiting = self.ns.waiting_mut(position);
        let before = waiting.charge();
        waiting.terms = terms;
        let after = waiting.charge();
        self.ns.charged.waiting = self.ns.charged.waiting - before + after;
    }

    /// Repeats a granted request. It remains granted as long as all of its claims are held. If a hold was lost, or
    /// downgraded by another request of the owner, the client has to release the request. A hold that was upgraded
    /// since has another token.
    fn repeat_grant(&mut self, request: &Request<'_>, granted: u32, left: &[u64], is_new: bool) -> AcquireOutcome {
        if is_new {
            let rules = self.rules;
            let granted = self.ns.granted_requests.get_mut(granted);
            let call = Attempts::of(request.attempt);
            if granted.attempts.is_permanent() || call.is_permanent() {
                granted.attempts = Attempts::of(0);
            } else {
                granted.attempts.attach(&call, left, rules);
            }
        }
        let granted = self.ns.granted_requests.get(granted);
        let held = |(node, mode): (NodeId, Mode)| {
            let hold = self.ns.hold(node, granted.owner)?;
            (hold.mode >= mode).then_some(hold.token)
        };
        let tokens: Vec<FencingToken> = granted.live.iter().filter_map(held).collect();
        if tokens.len() == granted.claimed as usize {
            let newest = tokens.iter().copied().max().unwrap_or(granted.token);
            let fencing_token = if tokens.contains(&granted.token) { granted.token } else { newest };
            return AcquireOutcome::Granted { fencing_token };
        }
        refused(reason_only(Reason::NotHeld))
    }
}

impl Namespace {
    /// Returns the unreleased request with that id or, without an id, with these claims.
    pub(super) fn named_request(
        &self,
        owner: &Owner,
        request_id: Option<&str>,
        claims: &[Claim],
    ) -> Result<Option<NamedRequest>, CommandError> {
        let id = self.owner_id(owner);
        let found = match (owner, request_id) {
            (Owner::Session { session_id, .. }, Some(request_id)) => {
                let session = self.sessions.get(session_id.as_str());
                session.and_then(|session| self.request_named(&session.requests, request_id))
            }
            (Owner::Process(_), Some(request_id)) => {
                self.find_wait(id, &WaitKey::Named(request_id.into())).map(NamedRequest::Waiting)
            }
            (_, None) if id == NO_OWNER => None,
            (_, None) => {
                let key = self.claims_key(claims);
                key.and_then(|key| self.find_wait(id, &key)).map(NamedRequest::Waiting)
            }
        };
        let is_same = match found {
            None => true,
            Some(NamedRequest::Awaiting(_)) => false,
            Some(NamedRequest::Waiting(position)) => {
                let waiting = self.waiting(position);
                waiting.owner == id && same_claims(&waiting.claims, claims)
            }
            Some(NamedRequest::Granted(granted)) => {
                let granted = self.granted_requests.get(granted);
                let modes: BTreeMap<&Path, Mode> = claims.iter().map(|claim| (&claim.path, claim.mode)).collect();
                let is_claimed = |(node, mode): (NodeId, Mode)| modes.get(&self.tree.path_of(node)) == Some(&mode);
                let is_as_long = granted.claimed as usize == claims.len();
                granted.owner == id && is_as_long && granted.live.iter().all(is_claimed)
            }
        };
        match (is_same, request_id) {
            (false, Some(request_id)) => Err(CommandError::RequestIdTaken(request_id.to_owned())),
            _ => Ok(found),
        }
    }

    /// Returns why a request waits and at which position. Also returns whether it can be granted and must be scheduled.
    /// That is not expected, because every command grants what it unblocks, but it is no reason to fail the shard. The
    /// blockers are included only if `shows`.
    pub(super) fn queue_status(&self, position: QueuePosition, shows: bool) -> (Refused, bool) {
        let asked = self.evaluation_of(position);
        let mut waiters = Dependents::default();
        let (index, reason) = match self.evaluate(&asked, &mut waiters, false) {
            Decision::Blocked(index, reason) | Decision::Impossible(index, reason) => (index, reason),
            Decision::Granted => {
                let queue_position = shows.then(|| self.queue_position(&asked, 0));
                return (Refused { queue_position, ..reason_only(Reason::Queued) }, true);
            }
        };
        if !shows {
            return (reason_only(reason), false);
        }
        let queue_position = Some(self.queue_position(&asked, index));
        (Refused { queue_position, ..self.refusal(&asked, &mut waiters, index, reason) }, false)
    }
}

/// Compares claims, each path once, whatever their order.
fn same_claims(one: &[Claim], other: &[Claim]) -> bool {
    one.len() == other.len() && (one == other || in_order(one) == in_order(other))
}

fn in_order(claims: &[Claim]) -> Vec<&Claim> {
    let mut claims: Vec<&Claim> = claims.iter().collect();
    claims.sort_unstable();
    claims
}
