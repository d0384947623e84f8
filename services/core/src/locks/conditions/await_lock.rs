//! Gives a lock up to await a condition of it.

use std::sync::Arc;

use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::kit::quota_exceeded;
use holdfast_primitives::metadata::{EncodedMetadata, metadata_charge};
use holdfast_primitives::reply_size::{reason_only, refused};

use super::charge::of_await;
use super::{Await, AwaitStage};
use crate::locks::charge;
use crate::locks::end::EndCause;
use crate::locks::hold::{Hold, HoldTerms};
use crate::locks::owner::{NO_OWNER, OwnerId};
use crate::locks::reply_size::truncated;
use crate::locks::tree::NodeId;
use crate::locks::txn::NamespaceTxn;
use crate::{
    AcquireOutcome, AwaitCondition, CommandError, Enqueued, EventKind, FencingToken, Mode, Owner, Path, Reason,
    Response, Wait, WaitId, Woken,
};

/// An await, whichever command carries it, as [`AwaitCondition`] describes it.
pub(super) struct AwaitRequest<'a> {
    pub(super) owner: &'a Owner,
    pub(super) path: &'a Path,
    pub(super) token: FencingToken,
    pub(super) condition: &'a str,
    pub(super) wait: Wait,
    pub(super) relock_ms: Option<u64>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: Option<u64>,
    pub(super) metadata: Option<&'a crate::Metadata>,
    pub(super) attempt: u64,
    pub(super) left: &'a [u64],
}

/// The outcome of an await, and why its owner waits for the lock or has it again.
type Outcome = (AcquireOutcome, Option<Woken>);

impl<'a> From<&'a AwaitCondition> for AwaitRequest<'a> {
    fn from(awaits: &'a AwaitCondition) -> Self {
        Self {
            owner: &awaits.owner,
            path: &awaits.path,
            token: awaits.fencing_token,
            condition: &awaits.condition,
            wait: awaits.wait,
            relock_ms: awaits.relock_ms,
            ttl_ms: awaits.ttl_ms,
            transition_ms: awaits.transition_ms,
            metadata: awaits.metadata.as_ref(),
            attempt: awaits.attempt,
            left: &awaits.abandoned,
        }
    }
}

impl AwaitRequest<'_> {
    /// Returns the terms of the owner's next hold: the terms that the request names, and the former hold's for the
    /// rest.
    fn new_terms(&self, before: &HoldTerms) -> HoldTerms {
        HoldTerms {
            ttl_ms: self.ttl_ms,
            transition_ms: match self.transition_ms {
                Some(ms) => u32::try_from(ms).unwrap_or(u32::MAX),
                None => before.transition_ms,
            },
            metadata: self.metadata.map_or_else(|| before.metadata.clone(), EncodedMetadata::of),
            ..before.clone()
        }
    }
}

impl NamespaceTxn<'_> {
    pub(super) fn await_condition(
        &mut self,
        request: &AwaitRequest<'_>,
        is_new: bool,
    ) -> Result<Response, CommandError> {
        check_await(request)?;
        let (outcome, woken) = match self.repeated_await(request, is_new)? {
            Some(outcome) => outcome,
            None if !is_new => return Ok(Response::Ignored),
            None => self.release_and_await(request)?,
        };
        let locks = self.views(&[request.path], NO_OWNER, !matches!(outcome, AcquireOutcome::Granted { .. }));
        Ok(Response::Awaited { outcome, woken, locks })
    }

    /// Returns the outcome if the hold with that token was given up already.
    fn repeated_await(&mut self, request: &AwaitRequest<'_>, is_new: bool) -> Result<Option<Outcome>, CommandError> {
        let owner = self.ns.owner_id(request.owner);
        if owner == NO_OWNER {
            return Ok(None);
        }
        let busy = || CommandError::Busy("what awaits the condition is being released".into());
        match self.ns.conditions.stage(request.path, request.token) {
            Some(AwaitStage::Awaiting(wait)) if self.ns.conditions.get(wait).is_some_and(|it| it.owner == owner) => {
                match self.ns.sweep_of_await(wait) {
                    Some(_) => Err(busy()),
                    None => Ok(Some(self.repeat_await(request, wait, is_new))),
                }
            }
            Some(AwaitStage::Waiting(position)) if self.ns.waiting(position).owner == owner => {
                if self.ns.sweep_of_wait(position).is_some() {
                    return Err(busy());
                }
                let rules = self.rules;
                // How long it waits for the lock counts from when it was woken.
                if is_new && request.attempt >= self.ns.waiting(position).attempts.highest() {
                    let terms = request.new_terms(&self.ns.waiting(position).terms);
                    self.update_wait_terms(position, terms);
                }
                let waiting = self.ns.waiting_mut(position);
                if is_new {
                    waiting.attempts.attach(&Attempts::of(request.attempt), request.left, rules);
                }
                let (attempt, woken) =
                    (waiting.attempts.highest(), waiting.came_from.as_deref().map(|came_from| came_from.woken));
                let (not_granted, _) = self.ns.queue_status(position, self.with_views);
                let enqueued = Enqueued { wait: position.wait(), attempt, not_granted: truncated(not_granted) };
                Ok(Some((AcquireOutcome::Enqueued(Box::new(enqueued)), woken)))
            }
            _ => Ok(self.repeat_relocked(request, owner, is_new)),
        }
    }

    /// Applies the time limit and the terms of the newest call.
    fn repeat_await(&mut self, request: &AwaitRequest<'_>, wait: WaitId, is_new: bool) -> Outcome {
        let (ends_at_ms, rules) = (self.ends_at_ms(request.wait), self.rules);
        if is_new {
            let (call, terms) = (Attempts::of(request.attempt), self.updated_terms(request, wait));
            self.ns.conditions.change(wait, |awaits| {
                if request.attempt >= awaits.attempts.highest() {
                    if awaits.call.is_none() {
                        (awaits.ends_at_ms, awaits.relock_ms) = (ends_at_ms, request.relock_ms);
                    }
                    awaits.terms = terms.unwrap_or_else(|| awaits.terms.clone());
                }
                awaits.attempts.attach(&call, request.left, rules);
            });
            self.update_first_due();
        }
        let attempt = self.ns.conditions.get(wait).map_or(request.attempt, |awaits| awaits.attempts.highest());
        (enqueued(wait, attempt), None)
    }

    /// Returns the terms of a repeat of an await. Without capacity for the new metadata, the old metadata stays.
    fn updated_terms(&self, request: &AwaitRequest<'_>, wait: WaitId) -> Option<HoldTerms> {
        let before = &self.ns.conditions.get(wait)?.terms;
        let mut terms = request.new_terms(before);
        let bytes = |terms: &HoldTerms| metadata_charge(terms.metadata.len());
        let more = bytes(&terms).saturating_sub(bytes(before));
        if !self.has_capacity(more) || more > self.ns.free_bytes(self.other_namespaces_bytes).of_tables {
            terms.metadata = before.metadata.clone();
        }
        Some(terms)
    }

    /// Answers again if the present hold came from the await.
    fn repeat_relocked(&mut self, request: &AwaitRequest<'_>, owner: OwnerId, is_new: bool) -> Option<Outcome> {
        use holdfast_mutations::{Mutation, is_enabled};
        let node = self.ns.tree.find(request.path)?;
        let hold = self.ns.hold(node, owner).filter(|hold| self.ns.is_current(node, hold))?;
        let woken = hold.came_from().iter().rev().find(|it| it.token == request.token)?.woken;
        if is_enabled(Mutation::CondAwaitRepeat) {
            return None;
        }
        let (fencing_token, rules) = (hold.token, self.rules);
        let (call, requests) = (Attempts::of(request.attempt), hold.requests().to_vec());
        match requests.as_slice() {
            _ if !is_new => {}
            [] => self.change_hold(node, owner, |hold| hold.attach(&call, request.left, rules)),
            requests => {
                for granted in requests {
                    let attempts = &mut self.ns.granted_requests.get_mut(*granted).attempts;
                    match attempts.is_permanent() || call.is_permanent() {
                        true => *attempts = Attempts::of(0),
                        false => attempts.attach(&call, request.left, rules),
                    }
                }
            }
        }
        Some((AcquireOutcome::Granted { fencing_token }, Some(woken)))
    }

    /// Returns the hold to give up, if the owner has it under that token.
    fn hold_to_exchange(&self, request: &AwaitRequest<'_>) -> Option<(NodeId, OwnerId, &Hold)> {
        use holdfast_mutations::{Mutation, is_enabled};
        let owner = self.ns.owner_id(request.owner);
        let node = self.ns.tree.find(request.path).filter(|_| owner != NO_OWNER)?;
        let hold = self.ns.hold(node, owner)?;
        let is_repeated =
            || is_enabled(Mutation::CondAwaitRepeat) && hold.came_from().iter().any(|it| it.token == request.token);
        let is_it = hold.mode == Mode::Write && (hold.token == request.token || is_repeated());
        (is_it && self.ns.is_current(node, hold)).then_some((node, owner, hold))
    }

    /// Ends the hold, lets its owner await the condition, and grants the lock to the next waiting requests.
    fn release_and_await(&mut self, request: &AwaitRequest<'_>) -> Result<Outcome, CommandError> {
        let Some((node, owner, hold)) = self.hold_to_exchange(request) else {
            return Ok((refused(reason_only(Reason::NotHeld)), None));
        };
        if usize::from(hold.direct) + hold.requests().len() > 1 {
            let why = "several requests of the owner claim the lock: release all but one before it is given up";
            return Err(CommandError::InvalidArgument(why.into()));
        }
        let named = hold.requests().first().map(|granted| self.ns.granted_requests.get(*granted));
        // A request with further claims stays, without this one.
        let request_id = named.filter(|named| named.claimed == 1).map(|named| named.request_id.as_str().to_owned());
        let kept = hold.extras.as_deref();
        let terms = HoldTerms {
            ttl_ms: request.ttl_ms,
            transition_ms: match request.transition_ms {
                Some(ms) => u32::try_from(ms).unwrap_or(u32::MAX),
                None => hold.transition_ms,
            },
            metadata: match request.metadata {
                Some(metadata) => EncodedMetadata::of(metadata),
                None => kept.map(|kept| kept.metadata.clone()).unwrap_or_default(),
            },
            // That was the end of the hold that is given up.
            requested_expires_at_ns: None,
            // Its owner gave up that time with the lock.
            at_least_ms: 0,
        };
        let session_id = if let Owner::Session { session_id, .. } = request.owner { session_id.as_str() } else { "" };
        if self.ns.is_frozen() || self.ns.has_report(session_id) {
            return Err(CommandError::Busy("what the owner has is being released".into()));
        }
        self.check_await_limits(request, (owner, hold), request_id.as_deref(), terms.metadata.len())?;
        // Not held up by how long the lock was to be kept from others.
        self.finish_hold(node, owner, EndCause::Released);
        let owner = self.ns.intern_owner(request.owner);
        let wait = WaitId(self.common.next_revision());
        let awaits = Await {
            owner,
            owner_bytes: charge::name_bytes(request.owner),
            path: Arc::new(request.path.clone()),
            condition: request.condition.into(),
            from_token: request.token,
            terms,
            request_id: request_id.map(Into::into),
            attempts: Attempts::of(request.attempt),
            ends_at_ms: self.ends_at_ms(request.wait),
            relock_ms: request.relock_ms,
            since_ms: self.wall_ms,
            call: None,
        };
        self.record_await(EventKind::Awaiting, wait.0, &awaits);
        self.ns.add_await(wait, awaits);
        self.ns.count_wait();
        self.update_first_due();
        self.effects.capture(wait);
        self.run_grant_loop();
        Ok(self.captured_outcome(request.attempt))
    }

    /// Returns what has become of an await by the end of its command.
    fn captured_outcome(&mut self, attempt: u64) -> Outcome {
        let (wait, woken, outcome) = self.effects.take_captured_await();
        match outcome {
            Some(Ok(fencing_token)) => (AcquireOutcome::Granted { fencing_token }, woken),
            Some(Err(reason)) => (refused(reason_only(reason)), woken),
            None => {
                // A signal that was handed on in this command has woken it already.
                let place = self.with_views.then(|| self.ns.status_of_woken(wait)).flatten();
                let not_granted = place.unwrap_or_else(|| reason_only(Reason::Queued));
                (AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted })), woken)
            }
        }
    }

    /// Checks the limits of awaits. Nothing that an await becomes is refused for a limit, so that it counts already as
    /// a waiting request and as a hold.
    fn check_await_limits(
        &self,
        request: &AwaitRequest<'_>,
        (owner, hold): (OwnerId, &Hold),
        request_id: Option<&str>,
        metadata_bytes: usize,
    ) -> Result<(), CommandError> {
        let limits = &self.ns.limits;
        let (awaits, names) = self.ns.conditions.load_of(request.path, request.condition);
        if awaits >= limits.max_awaiting_per_lock {
            return Err(quota_exceeded(
                "the number of owners that await conditions of a lock",
                limits.max_awaiting_per_lock,
                "let fewer wait for the same lock or have the limit raised",
            ));
        }
        if names >= limits.max_conditions_per_lock {
            return Err(quota_exceeded(
                "the number of conditions of a lock",
                limits.max_conditions_per_lock,
                "use fewer names or have the limit raised",
            ));
        }
        self.check_waiting_count()?;
        self.check_waits_of_owner(owner)?;
        self.check_holds_of_waiting(owner, 0)?;
        let owner_bytes = charge::name_bytes(request.owner);
        let more = of_await((request.path, request.condition), owner_bytes, request_id, metadata_bytes);
        let free = self.ns.free_bytes(self.other_namespaces_bytes);
        if more.counted > free.of_tables {
            return Err(quota_exceeded(
                "the state of latches, semaphores, pools, barriers and conditions of a namespace, in bytes,",
                limits.max_primitive_bytes,
                "delete what is done with, send less metadata or have the limit raised",
            ));
        }
        // The hold makes room for it.
        let (of_hold, of_metadata) = hold.charge();
        let freed = of_hold + of_metadata + request_id.map_or(0, |id| charge::granted(id.len(), 1));
        if !self.has_capacity(more.charged.saturating_sub(freed)) {
            return Err(quota_exceeded(
                "the state of the account in this shard, in bytes,",
                limits.max_state_bytes,
                "release locks, close sessions, send less metadata or have the limit raised",
            ));
        }
        Ok(())
    }
}

/// Validates an await. Frontends validate too; this check guarantees that no process waits forever.
fn check_await(request: &AwaitRequest<'_>) -> Result<(), CommandError> {
    let malformed = |what: &str| Err(CommandError::Malformed(what.into()));
    if request.condition.len() > crate::MAX_CONDITION_BYTES {
        return malformed("the name of a condition is too long");
    }
    if matches!(request.wait, Wait::No | Wait::For(0)) {
        return malformed("an await takes some time");
    }
    match (request.owner, request.ttl_ms) {
        (Owner::Session { .. }, Some(_)) => malformed("a hold of a session lives as long as the session"),
        (Owner::Process(_), None | Some(0)) => malformed("a hold of a process has a time to live"),
        (Owner::Process(_), _) if request.wait == Wait::Unlimited || request.relock_ms.is_none() => {
            malformed("a process waits for a limited time")
        }
        _ => Ok(()),
    }
}

fn enqueued(wait: WaitId, attempt: u64) -> AcquireOutcome {
    AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted: reason_only(Reason::Queued) }))
}
