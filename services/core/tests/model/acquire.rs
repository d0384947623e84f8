//! What the model answers to an acquire.

use holdfast_core::{
    Acquire, AcquireOutcome, Blocker, Claim, CommandError, Effect, Enqueued, Mode, Owner, Path, Reason, Refused,
    Response, Wait, WaitId,
};

use crate::attempts::Attempts;
use crate::graph::{Evaluation, reaches};
use crate::run::GrantContext;
use crate::state::{Model, OwnerKey, Terms, Wait as Waiting, not_granted};

pub(crate) type CommandResult = Result<Response, CommandError>;

fn refused(reason: Reason, blockers: Vec<Blocker>) -> AcquireOutcome {
    AcquireOutcome::Refused(Box::new(not_granted(reason, blockers)))
}

/// Where the unreleased request is that a call is about.
pub(crate) enum NamedRequest {
    Waiting(usize),
    Granted(usize),
}

pub(crate) fn distinct_claims(claims: &[Claim]) -> Vec<Claim> {
    let mut found: Vec<Claim> = vec![];
    for claim in claims {
        match found.iter_mut().find(|other| other.path == claim.path) {
            Some(other) => other.mode = other.mode.max(claim.mode),
            None => found.push(claim.clone()),
        }
    }
    found
}

fn same_claims(one: &[Claim], other: &[Claim]) -> bool {
    one.len() == other.len() && one.iter().all(|claim| other.contains(claim))
}

impl Model {
    pub(crate) fn named_request(
        &self,
        who: &OwnerKey,
        id: Option<&str>,
        claims: &[Claim],
    ) -> Result<Option<NamedRequest>, CommandError> {
        let Some(id) = id else {
            let unnamed =
                |wait: &Waiting| wait.request_id.is_none() && wait.who == *who && same_claims(&wait.claims, claims);
            return Ok(self.waits.iter().position(unnamed).map(NamedRequest::Waiting));
        };
        let is_its = |other: &OwnerKey| if who.number == 0 { other == who } else { other.number == who.number };
        let waiting = self.waits.iter().position(|wait| wait.request_id.as_deref() == Some(id) && is_its(&wait.who));
        let granted = self.granted.iter().position(|granted| granted.id == id && is_its(&granted.who));
        let taken = Err(CommandError::RequestIdTaken(id.to_owned()));
        match (waiting, granted) {
            (Some(index), _) => {
                let wait = &self.waits[index];
                if wait.who == *who && same_claims(&wait.claims, claims) {
                    Ok(Some(NamedRequest::Waiting(index)))
                } else {
                    taken
                }
            }
            (_, Some(index)) => {
                let granted = &self.granted[index];
                // What was lost of it is not remembered.
                let live = granted.claims.iter().filter(|claim| granted.live.contains(&claim.path));
                let is_same = granted.claims.len() == claims.len() && live.into_iter().all(|it| claims.contains(it));
                if granted.who == *who && is_same { Ok(Some(NamedRequest::Granted(index))) } else { taken }
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn acquire(&mut self, request: &Acquire, left: &[u64]) -> CommandResult {
        let claims = distinct_claims(&request.claims);
        if request.allow_upgrade && claims.len() > 1 {
            return Err(CommandError::Malformed(String::new()));
        }
        let is_new = match &request.owner {
            Owner::Process(_) => true,
            Owner::Session { session_id, .. } => self.check_sequence(session_id, request.message)?,
        };
        let who = self.owner_key(&request.owner);
        let found = self.named_request(&who, request.request_id.as_deref(), &claims)?;
        if found.as_ref().is_some_and(|found| self.is_request_swept(found)) {
            return Err(CommandError::Busy(String::new()));
        }
        let outcome = match found {
            Some(NamedRequest::Waiting(index)) => self.repeat_wait(request, index, left, is_new),
            Some(NamedRequest::Granted(index)) => self.repeat_grant(request, index, left, is_new),
            None if !is_new => return Ok(Response::Ignored),
            None => self.decide(request, &who, &claims, left)?,
        };
        let mut paths: Vec<&Path> = claims.iter().map(|claim| &claim.path).collect();
        paths.sort();
        let own = self.owner_key(&request.owner);
        let locks = paths.into_iter().map(|path| self.view_of_owner(path, &own)).collect();
        Ok(Response::Acquired { outcome, locks })
    }

    pub(crate) fn terms(&self, request: &Acquire) -> Terms {
        Terms {
            ttl_ms: request.ttl_ms,
            transition_ms: request.transition_ms,
            metadata: request.metadata.clone(),
            asked_expires_at_ns: request.requested_expires_at_ns,
            at_least_ms: self.at_least_ms,
        }
    }

    fn ends_at_ms(&self, wait: Wait) -> Option<u64> {
        if let Wait::For(ms) = wait { Some(self.clock_ms + ms) } else { None }
    }

    fn repeat_wait(&mut self, request: &Acquire, index: usize, left: &[u64], is_new: bool) -> AcquireOutcome {
        let waits = request.wait != Wait::No;
        let ends_at_ms = self.ends_at_ms(request.wait);
        let wait = &mut self.waits[index];
        let is_newest = request.attempt >= wait.attempts.highest();
        if is_new && (is_newest || !waits) {
            let (before, at_least_ms) = (wait.terms.metadata.clone(), wait.terms.at_least_ms);
            let mut terms = Terms { at_least_ms, ..self.terms(request) };
            let (now, mut after) = (self.state_bytes().waiting, self.clone());
            after.waits[index].terms = terms.clone();
            if !self.has_capacity(after.state_bytes().waiting.saturating_sub(now)) {
                terms.metadata = before;
            }
            self.waits[index].terms = terms;
        }
        let wait = &mut self.waits[index];
        if is_new && waits {
            wait.attempts.attach(&Attempts::of(request.attempt), left, self.rules);
            if is_newest {
                wait.ends_at_ms = ends_at_ms;
            }
        }
        let (wait, mut why) = (&self.waits[index], self.queue_status(index));
        if waits {
            let (wait, attempt) = (WaitId(wait.id), wait.attempts.highest());
            return AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted: why }));
        }
        why.reason = Reason::Queued;
        AcquireOutcome::Refused(Box::new(why))
    }

    /// Why a request waits, and where.
    pub(crate) fn queue_status(&self, index: usize) -> Refused {
        let wait = &self.waits[index];
        let asked = Evaluation { who: &wait.who, claims: &wait.claims, position: wait.queue_position() };
        let fails = self.current_failure(&asked, &self.graph());
        assert!(fails.is_some() || self.has_pending_grants, "or it would have been granted");
        let (failing, reason, blockers) = fails.unwrap_or((0, Reason::Queued, vec![]));
        let mut why = not_granted(reason, blockers);
        let here = |other: &&Waiting| other.claims.iter().any(|claim| claim.path == wait.claims[failing].path);
        let before = self.waits.iter().filter(here).filter(|other| other.queue_position() < wait.queue_position());
        why.queue_position = Some((before.count() as u64).min(self.bounds.max_queue_position));
        why
    }

    fn repeat_grant(&mut self, request: &Acquire, index: usize, left: &[u64], is_new: bool) -> AcquireOutcome {
        let granted = &mut self.granted[index];
        if is_new {
            granted.attempts.attach_to_hold(&Attempts::of(request.attempt), left, self.rules);
        }
        let granted = &self.granted[index];
        let live = granted.claims.iter().filter(|claim| granted.live.contains(&claim.path));
        let owns =
            live.filter_map(|claim| self.hold_of(&granted.who, &claim.path).filter(|own| own.mode >= claim.mode));
        let tokens: Vec<u64> = owns.map(|own| own.token).collect();
        if tokens.len() < granted.claims.len() {
            return refused(Reason::NotHeld, vec![]);
        }
        let newest = tokens.iter().copied().max().unwrap_or(granted.token);
        let is_there = tokens.contains(&granted.token);
        AcquireOutcome::Granted { fencing_token: if is_there { granted.token } else { newest } }
    }

    /// What the owner's own holds make of a claim.
    fn permanent_failure(&self, request: &Acquire, who: &OwnerKey, claim: &Claim) -> Option<(Reason, Vec<Blocker>)> {
        let own = self.hold_of(who, &claim.path);
        if request.fencing_token.is_some() && own.map(|own| own.token) != request.fencing_token {
            return Some((Reason::NotHeld, vec![]));
        }
        if own.is_some_and(|own| self.is_over(own)) {
            return Some((Reason::NotHeld, vec![]));
        }
        if own.is_some_and(|own| self.is_relinquished(own)) {
            return request.fencing_token.map(|_| (Reason::NotHeld, vec![]));
        }
        let own = own.filter(|own| own.mode != claim.mode)?;
        if !request.allow_upgrade || request.fencing_token.is_some() {
            let blocker = Blocker { path: claim.path.clone(), waiting: false, holder: self.holder_view(own) };
            return Some((Reason::Upgrade, vec![blocker]));
        }
        let mut upgrades = self.waits.iter().filter(|wait| wait.upgrade && wait.conflicts(who, claim));
        let other = upgrades.next().filter(|_| claim.mode == Mode::Write)?;
        Some((Reason::Upgrade, vec![self.waiting_blocker(other, claim)]))
    }

    /// New requests have to come again while something of theirs is being ended.
    fn check_not_busy(&self, request: &Acquire, who: &OwnerKey, claims: &[Claim]) -> Result<(), CommandError> {
        let extends = |claim: &Claim| {
            self.hold_of(who, &claim.path).is_some_and(|own| {
                let is_it = request.fencing_token.is_none_or(|token| token == own.token);
                is_it && own.mode == claim.mode && !self.is_over(own) && !self.is_relinquished(own)
            })
        };
        let is_new = request.fencing_token.is_none() && !claims.iter().all(extends);
        if is_new && (self.is_frozen() || self.conflicts_with_sweep(request, who)) {
            return Err(CommandError::Busy(String::new()));
        }
        Ok(())
    }

    fn decide(
        &mut self,
        request: &Acquire,
        who: &OwnerKey,
        claims: &[Claim],
        abandoned: &[u64],
    ) -> Result<AcquireOutcome, CommandError> {
        self.check_not_busy(request, who, claims)?;
        let waits = request.wait != Wait::No;
        let graph = self.graph();
        let upgrade = claims.len() == 1
            && request.fencing_token.is_none()
            && request.allow_upgrade
            && self.own_of(who, &claims[0].path).is_some_and(|own| own.mode < claims[0].mode && !self.is_over(own));
        let asked = Evaluation { who, claims, position: (!upgrade, u64::MAX) };
        let never = claims.iter().enumerate().find_map(|(index, claim)| {
            let (reason, blockers) = self.permanent_failure(request, who, claim)?;
            Some((index, reason, blockers))
        });
        let fails = self.current_failure(&asked, &graph);
        if let Some((index, reason, blockers)) = never {
            let is_first = fails.as_ref().is_none_or(|(failing, _, _)| index <= *failing);
            if is_first
                || waits
                || fails.as_ref().is_some_and(|fails| fails.1 == Reason::Queued && self.only_must_yield(&asked))
            {
                return Ok(refused(reason, blockers));
            }
        }
        let Some((failing, reason, blockers)) = fails else {
            self.check_holds(who, claims)?;
            self.check_session_limits(who, claims, request.request_id.as_deref())?;
            let keeps_metadata = self.check_capacity_to_hold(request, who, claims)?;
            self.check_tangled_grant(who, claims)?;
            let metadata_fits = !keeps_metadata;
            let callers = Attempts::of(request.attempt);
            let call = GrantContext {
                attempts: &callers,
                abandoned,
                request_id: request.request_id.as_deref(),
                metadata_fits,
            };
            let terms = self.terms(request);
            let fencing_token = self.grant(who, claims, &terms, call);
            self.run_grant_loop();
            return Ok(AcquireOutcome::Granted { fencing_token });
        };
        if !waits {
            return Ok(refused(reason, blockers));
        }
        self.check_may_wait(who, claims)?;
        // Of a circle that goes through a place in the queue, whoever stands there overtakes.
        let by_holds = self.hold_edges();
        let closes_cycle = |claim: &Claim| {
            let mut holds = self.holds.iter().filter(|hold| hold.conflicts(who, claim) && !hold.is_kept);
            holds.any(|hold| reaches(&by_holds, &hold.who, who))
        };
        if claims.iter().any(closes_cycle) {
            return Ok(refused(Reason::Deadlock, blockers));
        }
        self.check_queue_limits(who, claims)?;
        self.check_session_limits(who, claims, request.request_id.as_deref())?;
        let here = |other: &&Waiting| other.claims.iter().any(|claim| claim.path == claims[failing].path);
        let before = self.waits.iter().filter(here).filter(|other| other.queue_position() < asked.position).count();
        let mut why = not_granted(reason, blockers);
        why.queue_position = Some((before as u64).min(self.bounds.max_queue_position));
        self.enqueue(request, who, claims, upgrade, why)
    }

    /// No claim fails, but somebody behind has to go first.
    fn only_must_yield(&self, asked: &Evaluation<'_>) -> bool {
        let graph = self.graph();
        let fails = |claim: &Claim| {
            let own = self.own_of(asked.who, &claim.path).map(|own| own.mode);
            let matters = own != Some(claim.mode) && own != Some(Mode::Write);
            matters
                && (!self.blocking_holds(asked.who, claim).is_empty()
                    || !self.blocking_waits(asked, claim, &graph).is_empty())
        };
        !asked.claims.iter().any(fails)
    }

    fn enqueue(
        &mut self,
        request: &Acquire,
        who: &OwnerKey,
        claims: &[Claim],
        upgrade: bool,
        why: Refused,
    ) -> Result<AcquireOutcome, CommandError> {
        let id = self.revision + 1;
        let before = self.tangle();
        let (without, terms) = (self.clone(), self.terms(request));
        self.waits.push(Waiting {
            id,
            upgrade,
            who: who.clone(),
            claims: claims.to_vec(),
            terms,
            request_id: request.request_id.clone(),
            attempts: Attempts::of(request.attempt),
            ends_at_ms: self.ends_at_ms(request.wait),
            since_ms: self.wall_ms,
        });
        self.waits.sort_by_key(Waiting::queue_position);
        let room = self.check_capacity_to_wait(&without);
        if let Err(refusal) = room.and_then(|()| self.check_tangle(before, self.tangle())) {
            self.waits.retain(|wait| wait.id != id);
            return Err(refusal);
        }
        self.next_revision();
        self.run_grant_loop();
        let is_it = |effect: &Effect| matches!(effect, Effect::WaitResolved { wait, .. } if *wait == WaitId(id));
        let settled = self.effects.iter().position(is_it).map(|index| self.effects.remove(index));
        Ok(match settled {
            Some(Effect::WaitResolved { outcome: AcquireOutcome::Refused(end), .. }) => {
                refused(end.reason, why.blockers)
            }
            Some(Effect::WaitResolved { outcome, .. }) => outcome,
            _ => {
                let (wait, attempt) = (WaitId(id), request.attempt);
                AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted: why }))
            }
        })
    }
}
