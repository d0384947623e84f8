//! Acquires permits: at once, or by waiting. A repeat finds its hold or its wait by owner and request id.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::item::{PermitHold, PermitTerms, PermitWait, QueueRank};
use super::key::{Key, Scope};
use super::many::{PermitItem, item_of};
use super::{HoldOrWait, Semaphore, Semaphores, charge};
use crate::kit::{Kit, Notice, check_path, quota_exceeded};
use crate::locks::{Attempts, EncodedMetadata, reason_only, refused};
use crate::{
    AcquireOutcome, AcquirePermits, CommandError, Enqueued, FencingToken, Kind, MAX_NAME_BYTES, MAX_PERMITS,
    MAX_PRIORITY, Path, Phase, Reason, Refused, Response, Rules, Wait, WaitId, codec,
};

/// Whoever requests permits.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    pub(crate) scope: Scope,
    /// The thread of the session, if it is not for the session as a whole.
    pub(crate) holder: Option<Arc<str>>,
    /// The displayed process id.
    pub(crate) process_id: Arc<str>,
    /// Whether its message is new. An old one changes nothing.
    pub(crate) is_new: bool,
    /// Why it can't get anything new now.
    pub(crate) refusal: Option<CommandError>,
}

impl Requester {
    pub(super) fn key(&self, path: &Path, request_id: &str) -> Key {
        let (scope, holder) = (self.scope.clone(), self.holder.clone());
        Key { scope, request_id: request_id.into(), path: Arc::new(path.clone()), holder }
    }
}

impl Semaphores {
    pub(crate) fn acquire(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
    ) -> Result<Response, CommandError> {
        check_request(request)?;
        let key = requester.key(&request.path, &request.request_id);
        self.end_due_at(kit, &key);
        self.settle(kit);
        let entry = self.index.get(&key).copied();
        if entry.is_none() && !requester.is_new {
            return Ok(Response::Ignored);
        }
        if let Some(entry) = entry {
            self.check_repeat(kit, request, &item_of(&key, entry))?;
        }
        let outcome = match entry {
            Some(HoldOrWait::Hold(token)) => self.extend(kit, requester, request, token)?,
            Some(HoldOrWait::Wait(rank)) => self.repeat_wait(kit, requester, request, rank),
            None if request.fencing_token.is_some() => refused(reason_only(Reason::NotHeld)),
            None => self.begin(kit, requester, request, key)?,
        };
        Ok(self.acquired(kit, &request.path, outcome))
    }

    /// Builds the response, with the holders with most permits unless it was granted.
    fn acquired(&self, kit: &Kit<'_>, path: &Path, outcome: AcquireOutcome) -> Response {
        let shows = kit.with_views && !matches!(outcome, AcquireOutcome::Granted { .. });
        let semaphore = self.view(kit, path);
        let holders = if shows { self.heaviest_holders(path, codec::size(&semaphore), kit.sight) } else { Vec::new() };
        Response::PermitsAcquired { outcome, semaphore, holders }
    }

    /// Checks a request for something that there is: whether it may still change.
    fn check_repeat(&self, kit: &Kit<'_>, request: &AcquirePermits, item: &PermitItem<'_>) -> Result<(), CommandError> {
        let mark = (kit.sight.sweep_of)(item);
        if mark.is_some_and(|mark| mark.at_once || item.token.is_none()) {
            return Err(CommandError::Busy("what the owner has is being released".to_owned()));
        }
        self.by_path.get(&request.path).map_or(Ok(()), |semaphore| semaphore.check_figure(request))
    }

    /// Extends a hold, and changes its weight. More permits are granted at once or not at all: two holds that grow
    /// would wait for each other.
    fn extend(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
        token: FencingToken,
    ) -> Result<AcquireOutcome, CommandError> {
        let path = &request.path;
        let granted = AcquireOutcome::Granted { fencing_token: token };
        let Some(before) = self.hold(path, token).map(|hold| hold.weight) else { return Ok(granted) };
        let is_other = request.fencing_token.is_some_and(|wanted| wanted != token);
        if is_other || self.is_being_deleted(path) {
            return Ok(refused(reason_only(Reason::NotHeld)));
        }
        if !requester.is_new {
            return Ok(granted);
        }
        let weight = if request.fencing_token.is_some() { before } else { request.weight };
        if is_enabled(Mutation::SemDouble) {
            self.change(path, |semaphore| semaphore.in_use += weight);
        }
        let Some(semaphore) = self.by_path.get(path) else { return Ok(granted) };
        if let Some(more) = weight.checked_sub(before).filter(|more| *more > 0) {
            if let Some(refusal) = &requester.refusal {
                return Err(refusal.clone());
            }
            if !semaphore.fits(more) || !semaphore.queue.is_empty() {
                return Ok(refused(reason_only(semaphore.reason(weight, more))));
            }
            return Ok(self.grow(kit, request, token));
        }
        self.renew(kit, request, token);
        if weight < before {
            self.shrink(kit, path, token, weight);
        }
        Ok(granted)
    }

    /// Gives a hold more permits under a new token.
    fn grow(&mut self, kit: &mut Kit<'_>, request: &AcquirePermits, token: FencingToken) -> AcquireOutcome {
        self.renew(kit, request, token);
        let Some(mut hold) = self.remove_hold(&request.path, token) else {
            return AcquireOutcome::Granted { fencing_token: token };
        };
        hold.weight = request.weight;
        hold.locked_at_ms = kit.wall_ms;
        hold.token = self.record_grant(kit, &hold.key, &hold.process_id, hold.weight);
        let fencing_token = hold.token;
        self.insert_hold(hold);
        AcquireOutcome::Granted { fencing_token }
    }

    /// Applies the terms of the newest call to a hold. Without capacity for the new metadata, the old metadata stays.
    fn renew(&mut self, kit: &Kit<'_>, request: &AcquirePermits, token: FencingToken) {
        let terms = PermitTerms::of(request);
        let deadline_ms = terms.ttl_ms.map(|ttl_ms| kit.clock_ms().saturating_add(ttl_ms));
        self.change_hold(&request.path, token, |hold| {
            (hold.phase, hold.deadline_ms) = (Phase::Held, deadline_ms);
            hold.transition_ms = terms.transition_ms;
            let before = hold.charge();
            let metadata = std::mem::replace(&mut hold.metadata, terms.metadata);
            if kit.check_bytes(hold.charge().saturating_sub(before)).is_err() {
                hold.metadata = metadata;
            }
            hold.attach(request);
        });
    }

    /// A repeat of a request that waits. It keeps its rank and its priority.
    fn repeat_wait(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
        rank: QueueRank,
    ) -> AcquireOutcome {
        let path = &request.path;
        if request.fencing_token.is_some() {
            return refused(reason_only(Reason::NotHeld));
        }
        let waits = is_waiting(request.wait);
        let Some(wait) = self.wait(path, rank) else { return refused(reason_only(Reason::Ended)) };
        let (key, is_newest) = (Arc::clone(&wait.key), request.attempt >= wait.attempts.highest());
        if request.weight > wait.weight {
            return refused(self.queued(kit, path, rank));
        }
        if requester.is_new {
            let ends_at_ms = ends_at_ms(kit, request.wait);
            self.change_wait(path, rank, |wait| {
                wait.weight = request.weight;
                if !waits || is_newest {
                    wait.set_terms(kit, PermitTerms::of(request));
                }
                if waits {
                    wait.attempts.attach(&Attempts::of(request.attempt), &request.abandoned, Rules::TWO);
                }
                if waits && is_newest {
                    wait.ends_at_ms = ends_at_ms;
                }
            });
            self.unsettle(path);
            self.settle(kit);
        }
        match self.index.get(&key).copied() {
            Some(HoldOrWait::Hold(fencing_token)) => {
                if !waits {
                    // This call relies on the hold too, but was not attached to the wait.
                    self.change_hold(path, fencing_token, |hold| hold.attach(request));
                }
                AcquireOutcome::Granted { fencing_token }
            }
            Some(HoldOrWait::Wait(rank)) if waits => {
                let attempt = self.wait(path, rank).map_or(0, |wait| wait.attempts.highest());
                let not_granted = self.queued(kit, path, rank);
                AcquireOutcome::Enqueued(Box::new(Enqueued { wait: rank.wait, attempt, not_granted }))
            }
            Some(HoldOrWait::Wait(rank)) => refused(self.queued(kit, path, rank)),
            None => refused(reason_only(Reason::Ended)),
        }
    }

    /// Decides a request that is not known yet.
    fn begin(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
        key: Key,
    ) -> Result<AcquireOutcome, CommandError> {
        let known = self.by_path.get_key_value(&request.path);
        let fresh = Semaphore::new(request.permits.unwrap_or_default(), false, kit.revision());
        let semaphore = match known {
            Some((_, semaphore)) => semaphore.as_ref(),
            None if request.permits.is_some() => {
                check_path(kit.limits, &request.path)?;
                &fresh
            }
            None => {
                let path = request.path.clone();
                return Err(CommandError::PrimitiveNotFound { kind: Kind::Semaphore, path });
            }
        };
        if semaphore.deleting.is_some() {
            return Err(CommandError::Busy("the semaphore is being deleted".to_owned()));
        }
        semaphore.check_figure(request)?;
        if let Some(refusal) = &requester.refusal {
            return Err(refusal.clone());
        }
        self.check_request_id(&key)?;
        if semaphore.is_too_large(request.weight) {
            return Ok(refused(reason_only(Reason::TooLarge)));
        }
        let fits = semaphore.fits(request.weight);
        let is_first = semaphore.queue.first_key_value().is_none_or(|(rank, _)| !rank.precedes(request.priority));
        // Who could have been granted before, had the slice sufficed, is granted first.
        let is_settled = !self.unsettled.contains(&request.path);
        let is_granted = fits && is_settled && (is_first || is_enabled(Mutation::SemOvertake));
        if !is_granted && !is_waiting(request.wait) {
            return Ok(refused(reason_only(semaphore.reason(request.weight, request.weight))));
        }
        let reason = semaphore.reason(request.weight, request.weight);
        self.check_quotas(kit, &key, requester, request, (semaphore, known.is_none()), !is_granted)?;
        let path = match known {
            Some((path, _)) => Arc::clone(path),
            None => {
                self.insert_semaphore(Arc::clone(&key.path), fresh);
                Arc::clone(&key.path)
            }
        };
        let key = Arc::new(Key { path, ..key });
        let (terms, attempts) = (PermitTerms::of(request), Attempts::of(request.attempt));
        let process_id = Arc::clone(&requester.process_id);
        if is_granted {
            let fencing_token = self.grant(kit, (key, process_id), request.weight, terms, attempts);
            return Ok(AcquireOutcome::Granted { fencing_token });
        }
        let (ends_at_ms, since_ms) = (ends_at_ms(kit, request.wait), kit.wall_ms);
        let wait = PermitWait { key, process_id, weight: request.weight, terms, attempts, ends_at_ms, since_ms };
        let rank = QueueRank::new(request.priority, WaitId(kit.next_revision()));
        self.insert_wait(rank, wait);
        kit.notify(Notice::Queued);
        let not_granted = Refused { reason, ..self.queued(kit, &request.path, rank) };
        Ok(AcquireOutcome::Enqueued(Box::new(Enqueued { wait: rank.wait, attempt: request.attempt, not_granted })))
    }

    /// Grants permits that fit.
    pub(super) fn grant(
        &mut self,
        kit: &mut Kit<'_>,
        (key, process_id): (Arc<Key>, Arc<str>),
        weight: u64,
        terms: PermitTerms,
        attempts: Attempts,
    ) -> FencingToken {
        let token = self.record_grant(kit, &key, &process_id, weight);
        self.insert_hold(PermitHold {
            key,
            process_id,
            weight,
            token,
            locked_at_ms: kit.wall_ms,
            phase: Phase::Held,
            deadline_ms: terms.ttl_ms.map(|ttl_ms| kit.clock_ms().saturating_add(ttl_ms)),
            transition_ms: terms.transition_ms,
            metadata: terms.metadata,
            attempts,
        });
        token
    }

    /// Ids are unique among all requests of a session.
    fn check_request_id(&self, key: &Key) -> Result<(), CommandError> {
        match key.session().and_then(|_| self.named(&key.scope, &key.request_id)) {
            Some(_) => Err(CommandError::RequestIdTaken(key.request_id.to_string())),
            None => Ok(()),
        }
    }

    fn check_quotas(
        &self,
        kit: &Kit<'_>,
        key: &Key,
        requester: &Requester,
        request: &AcquirePermits,
        (semaphore, is_new): (&Semaphore, bool),
        waits: bool,
    ) -> Result<(), CommandError> {
        let limits = kit.limits;
        let within = |count: u64, max: u64, what: &str| {
            let hint = "release permits or have the limit raised";
            if count < max { Ok(()) } else { Err(quota_exceeded(what, max, hint)) }
        };
        let waiting = semaphore.queue.len() as u64;
        let things = semaphore.holds.len() as u64 + waiting;
        if is_new {
            self.check_count(kit)?;
        }
        within(things, limits.max_holds_per_semaphore, "the number of holds of a semaphore")?;
        if let Some(number) = key.session() {
            let (count, max) = (self.count_of_session(number), limits.max_permit_holds_per_session);
            within(count, max, "the number of holds of semaphores of a session")?;
        }
        if waits {
            let all = self.waiting().saturating_add(kit.waiting_elsewhere);
            within(all, limits.max_waiting_per_namespace, "the number of waiting requests in a namespace")?;
            let max = limits.max_waiting_per_semaphore;
            within(waiting, max, "the number of requests that wait for a semaphore")?;
        }
        let of_semaphore = if is_new { charge::of_ephemeral(&request.path) } else { 0 };
        let of_request = match waits {
            true => charge::of_new_wait(key, &requester.process_id, &request.metadata),
            false => charge::of_new_hold(key, &requester.process_id, &request.metadata),
        };
        kit.check_bytes(of_semaphore + of_request)
    }

    /// Returns why a waiting request waits and, if a caller receives that, how many are before it.
    fn queued(&self, kit: &Kit<'_>, path: &Path, rank: QueueRank) -> Refused {
        let position = kit.with_views.then(|| self.queue_position(path, rank, kit.sight));
        Refused { queue_position: position, ..reason_only(Reason::Queued) }
    }
}

impl Semaphore {
    /// Returns why a request is not granted that needs `more` permits than it has.
    fn reason(&self, weight: u64, more: u64) -> Reason {
        match (self.is_too_large(weight), self.fits(more)) {
            (true, _) => Reason::TooLarge,
            (_, false) => Reason::Exhausted,
            (_, true) => Reason::Queued,
        }
    }

    /// Rejects another number of permits than that of a semaphore that was not configured.
    fn check_figure(&self, request: &AcquirePermits) -> Result<(), CommandError> {
        let is_other = !self.is_configured && request.permits.is_some_and(|permits| permits != self.permits);
        if is_other {
            let text = format!("the semaphore has {} permits; configure it to change that", self.permits);
            return Err(CommandError::InvalidArgument(text));
        }
        Ok(())
    }
}

impl PermitTerms {
    fn of(request: &AcquirePermits) -> Self {
        Self {
            ttl_ms: request.ttl_ms,
            transition_ms: u32::try_from(request.transition_ms).unwrap_or(u32::MAX),
            metadata: EncodedMetadata::of(&request.metadata),
        }
    }
}

impl PermitWait {
    /// Applies the terms of a newer call. Without capacity for the new metadata, the old metadata stays.
    fn set_terms(&mut self, kit: &Kit<'_>, terms: PermitTerms) {
        let before = self.charge();
        let metadata = self.terms.metadata.clone();
        self.terms = terms;
        if kit.check_bytes(self.charge().saturating_sub(before)).is_err() {
            self.terms.metadata = metadata;
        }
    }
}

fn is_waiting(wait: Wait) -> bool {
    !matches!(wait, Wait::No | Wait::For(0))
}

fn ends_at_ms(kit: &Kit<'_>, wait: Wait) -> Option<u64> {
    if let Wait::For(ms) = wait { Some(kit.clock_ms().saturating_add(ms)) } else { None }
}

/// Validates a request. Frontends validate too; this check guarantees that no hold or wait lasts forever or for no time
/// at all.
fn check_request(request: &AcquirePermits) -> Result<(), CommandError> {
    let fits = (1..=MAX_PERMITS).contains(&request.weight)
        && request.permits.is_none_or(|permits| permits <= MAX_PERMITS)
        && request.priority <= MAX_PRIORITY
        && (1..=MAX_NAME_BYTES).contains(&request.request_id.len());
    if !fits {
        let text = format!(
            "a request for permits has a weight of 1 to {MAX_PERMITS}, a priority of 0 to {MAX_PRIORITY} and an id"
        );
        return Err(CommandError::InvalidArgument(text));
    }
    let malformed = |what: &str| Err(CommandError::Malformed(what.into()));
    match (&request.owner, request.ttl_ms) {
        (crate::Owner::Session { .. }, Some(_)) => malformed("a hold of a session lives as long as the session"),
        (crate::Owner::Process(_), None | Some(0)) => malformed("a hold of a process has a time to live"),
        (crate::Owner::Process(_), _) if request.wait == Wait::Unlimited => {
            malformed("a process waits for a limited time")
        }
        (crate::Owner::Process(_), _) if request.message.is_some() => malformed("a message is one of a session"),
        _ => Ok(()),
    }
}
