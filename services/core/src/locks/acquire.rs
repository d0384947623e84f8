//! Acquire: grants all claims of a request together, or none.

use std::borrow::Cow;

use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::metadata::EncodedMetadata;
use holdfast_primitives::reply_size::reason_only;
use holdfast_primitives::reply_size::refused;

use super::charge;
use super::end::GrantContext;
use super::evaluate::{ClaimKind, Decision, Evaluation};
use super::hold::HoldTerms;
use super::namespace::Namespace;
use super::owner::NO_OWNER;
use super::queue::QueuePosition;
use super::reply_size::truncated;
use super::request::Request;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use super::wait_graph::Dependents;
use super::waiting::{BlockedOn, WaitingRequest, claim_set_of};
use crate::{
    AcquireOutcome, Claim, CommandError, Enqueued, FencingToken, Mode, Owner, Path, Reason, Refused, Response, Wait,
    WaitId,
};

/// Units of each path that a request adds: the path, and its place below its parent.
const NEW_PATH_UNITS: usize = 2;

impl NamespaceTxn<'_> {
    /// Executes an acquire. `left` lists earlier attempts at the same request whose callers disconnected.
    pub(super) fn acquire(&mut self, request: &Request<'_>, left: &[u64]) -> Result<Response, CommandError> {
        let before = self.common.revision;
        let claims = distinct_claims(request.claims);
        check_request(request, &claims)?;
        let is_new = match request.owner {
            Owner::Session { session_id, .. } => self.check_sequence(session_id, request.message)?,
            Owner::Process(_) => true,
        };
        let outcome = match self.repeated(request, &claims, left, is_new)? {
            Some(outcome) => outcome,
            None if !is_new => return Ok(Response::Ignored),
            None => self.decide(request, &claims, left)?,
        };
        if let AcquireOutcome::Granted { fencing_token } = outcome
            && !request.always_shows
            && fencing_token > before
            && self.ns.holds_all_under(request.owner, &claims, fencing_token)
        {
            return Ok(Response::Granted { fencing_token });
        }
        if !self.with_views {
            return Ok(Response::Acquired { outcome, locks: Vec::new() });
        }
        let mut paths: Vec<&Path> = claims.iter().map(|claim| &claim.path).collect();
        paths.sort_unstable();
        let own = self.ns.owner_id(request.owner);
        let locks = self.views(&paths, own, !matches!(outcome, AcquireOutcome::Granted { .. }));
        Ok(Response::Acquired { outcome, locks })
    }

    /// Decides a request whose id matches neither a waiting nor a granted request.
    fn decide(
        &mut self,
        request: &Request<'_>,
        claims: &[Claim],
        left: &[u64],
    ) -> Result<AcquireOutcome, CommandError> {
        let owner = self.ns.owner_id(request.owner);
        let lookups = claims.iter().map(|claim| self.ns.tree.lookup(&claim.path)).collect();
        let mut asked = Evaluation {
            owner,
            claims,
            lookups,
            position: QueuePosition::LAST,
            is_waiting: false,
            allow_upgrade: request.allow_upgrade,
            token: request.fencing_token,
        };
        // Extensions proceed, and an extension of an ended hold fails as such: neither is new.
        let is_new = request.fencing_token.is_none()
            && (0..claims.len()).any(|index| self.ns.claim_kind(&asked, index) != ClaimKind::Extends);
        if is_new && self.ns.conflicts_with_sweep(request) {
            return Err(CommandError::Busy("what the owner has, or what is held there, is being released".into()));
        }
        if is_new && self.ns.is_frozen() {
            return Err(CommandError::Busy("the namespace is being reset".into()));
        }
        self.check_id_of_permits(request.owner, request.request_id)?;
        let upgrades = self.ns.claim_kind(&asked, 0) == ClaimKind::Changes && claims[0].mode == Mode::Write;
        if upgrades {
            asked.position = QueuePosition::AFTER_UPGRADES;
        }
        let waits = !matches!(request.wait, Wait::No | Wait::For(0));
        let mut waiters = Dependents::default();
        let (index, reason) = match self.ns.evaluate(&asked, &mut waiters, waits) {
            Decision::Granted => {
                self.check_holds(&asked)?;
                self.check_session_limits(&asked, request.owner, request.request_id)?;
                let kept = EncodedMetadata::encoded_len(request.metadata);
                let keeps_metadata = self.check_capacity_to_hold(request, &asked, kept)?;
                self.check_tangled_grant(&asked)?;
                return Ok(self.grant_now(request, &asked, left, !keeps_metadata));
            }
            Decision::Impossible(index, reason) => {
                return Ok(refused(self.refusal(&asked, &mut waiters, index, reason)));
            }
            Decision::Blocked(index, reason) => (index, reason),
        };
        let mut not_granted = self.refusal(&asked, &mut waiters, index, reason);
        if !waits {
            return Ok(refused(not_granted));
        }
        self.check_may_wait(&asked)?;
        if let Some(cycle) = self.ns.detect_deadlock(&asked, self.with_views) {
            not_granted.reason = Reason::Deadlock;
            not_granted.cycle = cycle;
            return Ok(refused(truncated(not_granted)));
        }
        self.check_queue_limits(&asked)?;
        self.check_session_limits(&asked, request.owner, request.request_id)?;
        self.check_capacity_to_wait(request, &asked, EncodedMetadata::encoded_len(request.metadata))?;
        if self.with_views {
            not_granted.queue_position = Some(self.ns.queue_position(&asked, index));
        }
        drop(asked);
        self.enqueue(request, claims, upgrades, not_granted)
    }

    /// Returns why a request is not granted and, if views are wanted, which owners block it.
    fn refusal(&self, asked: &Evaluation<'_>, waiters: &mut Dependents, index: usize, reason: Reason) -> Refused {
        if self.with_views { truncated(self.ns.refusal(asked, waiters, index, reason)) } else { reason_only(reason) }
    }

    fn grant_now(
        &mut self,
        request: &Request<'_>,
        asked: &Evaluation<'_>,
        abandoned: &[u64],
        metadata_fits: bool,
    ) -> AcquireOutcome {
        let owner = match asked.owner {
            NO_OWNER => self.ns.intern_owner(request.owner),
            owner => owner,
        };
        let attempts = Attempts::of(request.attempt);
        let request_id = request.request_id;
        let call = GrantContext { attempts: &attempts, abandoned, request_id, metadata_fits, came_from: None };
        let paths = self.ns.tree.len();
        let nodes = self.ns.tree.ensure_paths(asked);
        self.spend_on_new_paths(paths);
        let fencing_token = self.grant(owner, (asked.claims, &nodes), &HoldTerms::of(request), call);
        self.run_grant_loop();
        AcquireOutcome::Granted { fencing_token }
    }

    /// Adds the request to the queue, unless that would make the wait-for graph too tangled. The new wait may let other
    /// requests overtake, and in the end even unblock the request itself.
    fn enqueue(
        &mut self,
        request: &Request<'_>,
        claims: &[Claim],
        upgrade: bool,
        not_granted: Refused,
    ) -> Result<AcquireOutcome, CommandError> {
        let wait = self.add_to_queue(request, claims, upgrade)?;
        self.effects.capture(wait);
        self.run_grant_loop();
        Ok(match self.effects.take_captured() {
            None => AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt: request.attempt, not_granted })),
            Some(Ok(fencing_token)) => AcquireOutcome::Granted { fencing_token },
            Some(Err(reason)) => refused(Refused { reason, queue_position: None, ..not_granted }),
        })
    }

    fn add_to_queue(&mut self, request: &Request<'_>, claims: &[Claim], upgrade: bool) -> Result<WaitId, CommandError> {
        let wait = WaitId(self.common.revision.saturating_add(1));
        let place = QueuePosition::of(wait, upgrade);
        let owner = self.ns.intern_owner(request.owner);
        let ends_at_ms = self.ends_at_ms(request.wait);
        let paths = self.ns.tree.len();
        let nodes: Vec<NodeId> = claims.iter().map(|claim| self.ns.tree.ensure_path(&claim.path)).collect();
        self.spend_on_new_paths(paths);
        let waiting = WaitingRequest {
            owner,
            claims: claims.to_vec(),
            claim_set: claim_set_of(nodes.iter().copied().zip(claims.iter().map(|claim| claim.mode))),
            nodes,
            terms: HoldTerms::of(request),
            request_id: request.request_id.map(Into::into),
            attempts: Attempts::of(request.attempt),
            ends_at_ms,
            since_ms: self.wall_ms,
            blocked_on: BlockedOn::Unknown,
            came_from: None,
        };
        let known = self.ns.checkpoint();
        self.ns.spend(waiting.units());
        self.ns.add_waiting(place, waiting);
        if let Err(refusal) = self.check_tangle(place) {
            self.ns.remove_waiting(place);
            self.ns.remove_if_idle(owner);
            self.ns.roll_back(known);
            self.run_grant_loop();
            return Err(refusal);
        }
        self.common.next_revision();
        self.ns.count_wait();
        self.add_wait_end(place, ends_at_ms);
        self.ns.blocked_index.schedule(place);
        Ok(wait)
    }

    /// Counts the paths that were added since there were `before`.
    fn spend_on_new_paths(&self, before: usize) {
        self.ns.spend(NEW_PATH_UNITS * self.ns.tree.len().saturating_sub(before));
    }

    /// Queues a request that an earlier leader of its table had queued, behind the queued requests. Limits apply as to
    /// a new request, because its place may have been given up since. A request that can no longer be granted, or now
    /// waits for itself, is not queued; it is refused when its session asks again.
    pub(super) fn requeue(&mut self, request: &Request<'_>) {
        let claims = distinct_claims(request.claims);
        let named = self.ns.named_request(request.owner, request.request_id, &claims);
        if !matches!(named, Ok(None)) || check_request(request, &claims).is_err() {
            return;
        }
        let asked = Evaluation {
            owner: self.ns.owner_id(request.owner),
            claims: &claims,
            lookups: claims.iter().map(|claim| self.ns.tree.lookup(&claim.path)).collect(),
            position: QueuePosition::LAST,
            is_waiting: false,
            allow_upgrade: false,
            token: None,
        };
        let decision = self.ns.evaluate(&asked, &mut Dependents::default(), true);
        let is_admitted = !matches!(decision, Decision::Impossible(..))
            && self.check_may_wait(&asked).is_ok()
            && self.ns.detect_deadlock(&asked, false).is_none()
            && self.check_queue_limits(&asked).is_ok()
            && self.check_session_limits(&asked, request.owner, request.request_id).is_ok()
            && self.check_capacity_to_wait(request, &asked, EncodedMetadata::encoded_len(request.metadata)).is_ok();
        drop(asked);
        if is_admitted && self.add_to_queue(request, &claims, false).is_ok() {
            self.run_grant_loop();
        }
    }

    pub(super) fn ends_at_ms(&self, wait: Wait) -> Option<u64> {
        match wait {
            Wait::For(ms) => Some(self.common.clock_ms.saturating_add(ms)),
            Wait::No | Wait::Unlimited => None,
        }
    }
}

impl Namespace {
    /// Returns whether the owner has each claim in its mode under a token that its request was granted with. One claim
    /// it has.
    fn holds_all_under(&self, owner: &Owner, claims: &[Claim], token: FencingToken) -> bool {
        let owner = self.owner_id(owner);
        let is_held = |claim: &Claim| {
            let hold = self.tree.find(&claim.path).and_then(|node| self.hold(node, owner));
            hold.is_some_and(|hold| hold.token == token && hold.mode == claim.mode)
        };
        claims.len() == 1 || claims.iter().all(is_held)
    }
}

impl HoldTerms {
    pub(super) fn of(request: &Request<'_>) -> Self {
        Self {
            ttl_ms: request.ttl_ms,
            transition_ms: u32::try_from(request.transition_ms).unwrap_or(u32::MAX),
            metadata: EncodedMetadata::of(request.metadata),
            requested_expires_at_ns: request.requested_expires_at_ns,
            at_least_ms: charge::at_least_of(request.at_least_ms),
        }
    }
}

/// Validates a request. Frontends validate too; this check guarantees that no hold or wait lasts forever or for no time
/// at all.
fn check_request(request: &Request<'_>, claims: &[Claim]) -> Result<(), CommandError> {
    let malformed = |what: &str| Err(CommandError::Malformed(what.into()));
    if claims.is_empty() {
        return malformed("a request has at least one claim");
    }
    if request.allow_upgrade && claims.len() > 1 {
        return malformed("a request that may change a mode has one claim");
    }
    match (request.owner, request.ttl_ms) {
        (Owner::Session { .. }, Some(_)) => return malformed("a hold of a session lives as long as the session"),
        (Owner::Process(_), None | Some(0)) => return malformed("a hold of a process has a time to live"),
        _ => {}
    }
    match (request.owner, request.wait) {
        (Owner::Process(_), Wait::Unlimited) => malformed("a process waits for a limited time"),
        (Owner::Process(_), _) if request.message.is_some() => malformed("a message is one of a session"),
        _ => Ok(()),
    }
}

/// Returns one claim per path, in the strongest mode requested for it, in order of first mention.
pub(super) fn distinct_claims(claims: &[Claim]) -> Cow<'_, [Claim]> {
    if let [_] = claims {
        return Cow::Borrowed(claims);
    }
    let mut by_path: Vec<(usize, &Claim)> = claims.iter().enumerate().collect();
    by_path.sort_unstable_by_key(|(place, claim)| (&claim.path, *place));
    let same_path = by_path.chunk_by(|(_, a), (_, b)| a.path == b.path);
    let strongest = same_path.filter_map(|same| {
        let (first, claim) = same.first()?;
        let mode = same.iter().map(|(_, claim)| claim.mode).max()?;
        Some((*first, Claim { path: claim.path.clone(), mode }))
    });
    let mut strongest: Vec<(usize, Claim)> = strongest.collect();
    strongest.sort_unstable_by_key(|(first, _)| *first);
    strongest.into_iter().map(|(_, claim)| claim).collect::<Vec<Claim>>().into()
}
