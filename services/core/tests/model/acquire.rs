//! What the model answers to an acquire.

use holdfast_core::{
    Acquire, AcquireOutcome, Answer, Blocker, Claim, Effect, Enqueued, Mode, NotGranted, Owner, Path, Reason, Refusal,
    Wait, WaitId,
};

use crate::callers::Callers;
use crate::graph::{Asked, reaches};
use crate::run::Call;
use crate::state::{Model, Terms, Wait as Waiting, Who, not_granted};

pub(crate) type Answered = Result<Answer, Refusal>;

fn refused(reason: Reason, blockers: Vec<Blocker>) -> AcquireOutcome {
    AcquireOutcome::Refused(Box::new(not_granted(reason, blockers)))
}

/// Where the unreleased request is that a call is about.
pub(crate) enum Found {
    Waiting(usize),
    Granted(usize),
}

pub(crate) fn distinct(claims: &[Claim]) -> Vec<Claim> {
    let mut found: Vec<Claim> = vec![];
    for claim in claims {
        match found.iter_mut().find(|other| other.path == claim.path) {
            Some(other) => other.mode = other.mode.max(claim.mode),
            None => found.push(claim.clone()),
        }
    }
    found
}

fn same(one: &[Claim], other: &[Claim]) -> bool {
    one.len() == other.len() && one.iter().all(|claim| other.contains(claim))
}

impl Model {
    pub(crate) fn find(&self, who: &Who, id: Option<&str>, claims: &[Claim]) -> Result<Option<Found>, Refusal> {
        let Some(id) = id else {
            let unnamed = |wait: &Waiting| wait.request_id.is_none() && wait.who == *who && same(&wait.claims, claims);
            return Ok(self.waits.iter().position(unnamed).map(Found::Waiting));
        };
        let is_its = |other: &Who| if who.number == 0 { other == who } else { other.number == who.number };
        let waiting = self.waits.iter().position(|wait| wait.request_id.as_deref() == Some(id) && is_its(&wait.who));
        let granted = self.granted.iter().position(|granted| granted.id == id && is_its(&granted.who));
        let taken = Err(Refusal::RequestIdTaken(id.to_owned()));
        match (waiting, granted) {
            (Some(index), _) => {
                let wait = &self.waits[index];
                if wait.who == *who && same(&wait.claims, claims) { Ok(Some(Found::Waiting(index))) } else { taken }
            }
            (_, Some(index)) => {
                let granted = &self.granted[index];
                // What was lost of it is not remembered.
                let live = granted.claims.iter().filter(|claim| granted.live.contains(&claim.path));
                let is_same = granted.claims.len() == claims.len() && live.into_iter().all(|it| claims.contains(it));
                if granted.who == *who && is_same { Ok(Some(Found::Granted(index))) } else { taken }
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn acquire(&mut self, request: &Acquire, left: &[u64]) -> Answered {
        let claims = distinct(&request.claims);
        if request.allow_upgrade && claims.len() > 1 {
            return Err(Refusal::Malformed(String::new()));
        }
        let is_new = match &request.owner {
            Owner::Process(_) => true,
            Owner::Session { session_id, .. } => self.admit(session_id, request.message)?,
        };
        let who = self.who(&request.owner);
        let found = self.find(&who, request.request_id.as_deref(), &claims)?;
        if found.as_ref().is_some_and(|found| self.is_found_swept(found)) {
            return Err(Refusal::Busy(String::new()));
        }
        let outcome = match found {
            Some(Found::Waiting(index)) => self.repeat_wait(request, index, left, is_new),
            Some(Found::Granted(index)) => self.repeat_grant(request, index, left, is_new),
            None if !is_new => return Ok(Answer::Ignored),
            None => self.decide(request, &who, &claims, left)?,
        };
        let mut paths: Vec<&Path> = claims.iter().map(|claim| &claim.path).collect();
        paths.sort();
        Ok(Answer::Acquired { outcome, locks: paths.into_iter().map(|path| self.view_of_some(path)).collect() })
    }

    pub(crate) fn terms(request: &Acquire) -> Terms {
        Terms {
            ttl_ms: request.ttl_ms,
            transition_ms: request.transition_ms,
            metadata: request.metadata.clone(),
            asked_expires_at_ns: request.asked_expires_at_ns,
        }
    }

    fn ends_at_ms(&self, wait: Wait) -> Option<u64> {
        if let Wait::For(ms) = wait { Some(self.clock_ms + ms) } else { None }
    }

    fn repeat_wait(&mut self, request: &Acquire, index: usize, left: &[u64], is_new: bool) -> AcquireOutcome {
        let waits = request.wait != Wait::No;
        let ends_at_ms = self.ends_at_ms(request.wait);
        let wait = &mut self.waits[index];
        let is_newest = request.attempt >= wait.callers.highest();
        if is_new && (is_newest || !waits) {
            let (before, mut terms) = (wait.terms.metadata.clone(), Self::terms(request));
            let (now, mut after) = (self.state_bytes().waiting, self.clone());
            after.waits[index].terms = terms.clone();
            if !self.has_room(after.state_bytes().waiting.saturating_sub(now)) {
                terms.metadata = before;
            }
            self.waits[index].terms = terms;
        }
        let wait = &mut self.waits[index];
        if is_new && waits {
            wait.callers.join(&Callers::of(request.attempt), left, self.rules);
            if is_newest {
                wait.ends_at_ms = ends_at_ms;
            }
        }
        let (wait, mut why) = (&self.waits[index], self.standing(index));
        if waits {
            let (wait, attempt) = (WaitId(wait.id), wait.callers.highest());
            return AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted: why }));
        }
        why.reason = Reason::Queued;
        AcquireOutcome::Refused(Box::new(why))
    }

    /// Why a request waits, and where.
    pub(crate) fn standing(&self, index: usize) -> NotGranted {
        let wait = &self.waits[index];
        let asked = Asked { who: &wait.who, claims: &wait.claims, place: wait.place() };
        let fails = self.fails(&asked, &self.graph());
        assert!(fails.is_some() || self.behind, "or it would have been granted");
        let (failing, reason, blockers) = fails.unwrap_or((0, Reason::Queued, vec![]));
        let mut why = not_granted(reason, blockers);
        let here = |other: &&Waiting| other.claims.iter().any(|claim| claim.path == wait.claims[failing].path);
        let before = self.waits.iter().filter(here).filter(|other| other.place() < wait.place());
        why.queue_position = Some((before.count() as u64).min(self.bounds.queue_position_shown));
        why
    }

    fn repeat_grant(&mut self, request: &Acquire, index: usize, left: &[u64], is_new: bool) -> AcquireOutcome {
        let granted = &mut self.granted[index];
        if is_new {
            granted.callers.join_hold(&Callers::of(request.attempt), left, self.rules);
        }
        let granted = &self.granted[index];
        let live = granted.claims.iter().filter(|claim| granted.live.contains(&claim.path));
        let owns = live.filter_map(|claim| self.own(&granted.who, &claim.path).filter(|own| own.mode >= claim.mode));
        let tokens: Vec<u64> = owns.map(|own| own.token).collect();
        if tokens.len() < granted.claims.len() {
            return refused(Reason::NotHeld, vec![]);
        }
        let newest = tokens.iter().copied().max().unwrap_or(granted.token);
        let is_there = tokens.contains(&granted.token);
        AcquireOutcome::Granted { fencing_token: if is_there { granted.token } else { newest } }
    }

    /// What the owner's own holds make of a claim.
    fn fails_for_good(&self, request: &Acquire, who: &Who, claim: &Claim) -> Option<(Reason, Vec<Blocker>)> {
        let own = self.own(who, &claim.path);
        if request.fencing_token.is_some() && own.map(|own| own.token) != request.fencing_token {
            return Some((Reason::NotHeld, vec![]));
        }
        if own.is_some_and(|own| self.is_over(own)) {
            return Some((Reason::NotHeld, vec![]));
        }
        let own = own.filter(|own| own.mode != claim.mode)?;
        if !request.allow_upgrade || request.fencing_token.is_some() {
            let blocker = Blocker { path: claim.path.clone(), waiting: false, holder: self.holder(own) };
            return Some((Reason::Upgrade, vec![blocker]));
        }
        let mut upgrades = self.waits.iter().filter(|wait| wait.upgrade && wait.conflicts(who, claim));
        let other = upgrades.next().filter(|_| claim.mode == Mode::Write)?;
        Some((Reason::Upgrade, vec![self.waiting_blocker(other, claim)]))
    }

    /// New requests have to come again while something of theirs is being ended.
    fn check_not_busy(&self, request: &Acquire, who: &Who, claims: &[Claim]) -> Result<(), Refusal> {
        let extends = |claim: &Claim| {
            self.own(who, &claim.path).is_some_and(|own| {
                let is_it = request.fencing_token.is_none_or(|token| token == own.token);
                is_it && own.mode == claim.mode && !self.is_over(own)
            })
        };
        let is_new = request.fencing_token.is_none() && !claims.iter().all(extends);
        if is_new && (self.is_frozen() || self.is_in_the_way_of_a_sweep(request, who)) {
            return Err(Refusal::Busy(String::new()));
        }
        Ok(())
    }

    fn decide(
        &mut self,
        request: &Acquire,
        who: &Who,
        claims: &[Claim],
        left: &[u64],
    ) -> Result<AcquireOutcome, Refusal> {
        self.check_not_busy(request, who, claims)?;
        let waits = request.wait != Wait::No;
        let graph = self.graph();
        let upgrade = claims.len() == 1
            && request.fencing_token.is_none()
            && request.allow_upgrade
            && self.own(who, &claims[0].path).is_some_and(|own| own.mode < claims[0].mode && !self.is_over(own));
        let asked = Asked { who, claims, place: (!upgrade, u64::MAX) };
        let never = claims.iter().enumerate().find_map(|(index, claim)| {
            let (reason, blockers) = self.fails_for_good(request, who, claim)?;
            Some((index, reason, blockers))
        });
        let fails = self.fails(&asked, &graph);
        if let Some((index, reason, blockers)) = never {
            let is_first = fails.as_ref().is_none_or(|(failing, _, _)| index <= *failing);
            if is_first
                || waits
                || fails.as_ref().is_some_and(|fails| fails.1 == Reason::Queued && self.only_yields(&asked))
            {
                return Ok(refused(reason, blockers));
            }
        }
        let Some((failing, reason, blockers)) = fails else {
            self.check_holds(who, claims)?;
            self.check_names(who, claims, request.request_id.as_deref())?;
            let keeps_metadata = self.check_room_to_hold(request, who, claims)?;
            self.check_tangled_grant(who, claims)?;
            let has_room = !keeps_metadata;
            let callers = Callers::of(request.attempt);
            let call = Call { callers: &callers, left, request_id: request.request_id.as_deref(), has_room };
            let fencing_token = self.grant(who, claims, &Self::terms(request), call);
            self.run();
            return Ok(AcquireOutcome::Granted { fencing_token });
        };
        if !waits {
            return Ok(refused(reason, blockers));
        }
        self.check_may_wait(who, claims)?;
        // Of a circle that goes through a place in the queue, whoever stands there overtakes.
        let by_holds = self.waits_for_holds();
        let closes_cycle = |claim: &Claim| {
            let mut holds = self.holds.iter().filter(|hold| hold.conflicts(who, claim));
            holds.any(|hold| reaches(&by_holds, &hold.who, who))
        };
        if claims.iter().any(closes_cycle) {
            return Ok(refused(Reason::Deadlock, blockers));
        }
        self.check_room_to_wait(who, claims)?;
        self.check_names(who, claims, request.request_id.as_deref())?;
        let here = |other: &&Waiting| other.claims.iter().any(|claim| claim.path == claims[failing].path);
        let before = self.waits.iter().filter(here).filter(|other| other.place() < asked.place).count();
        let mut why = not_granted(reason, blockers);
        why.queue_position = Some((before as u64).min(self.bounds.queue_position_shown));
        self.enqueue(request, who, claims, upgrade, why)
    }

    /// No claim fails, but somebody behind has to go first.
    fn only_yields(&self, asked: &Asked<'_>) -> bool {
        let graph = self.graph();
        let fails = |claim: &Claim| {
            let own = self.own(asked.who, &claim.path).map(|own| own.mode);
            let matters = own != Some(claim.mode) && own != Some(Mode::Write);
            matters
                && (!self.holds_in_the_way(asked.who, claim).is_empty()
                    || !self.waits_in_the_way(asked, claim, &graph).is_empty())
        };
        !asked.claims.iter().any(fails)
    }

    fn enqueue(
        &mut self,
        request: &Acquire,
        who: &Who,
        claims: &[Claim],
        upgrade: bool,
        why: NotGranted,
    ) -> Result<AcquireOutcome, Refusal> {
        let id = self.revision + 1;
        let before = self.tangle();
        let without = self.clone();
        self.waits.push(Waiting {
            id,
            upgrade,
            who: who.clone(),
            claims: claims.to_vec(),
            terms: Self::terms(request),
            request_id: request.request_id.clone(),
            callers: Callers::of(request.attempt),
            ends_at_ms: self.ends_at_ms(request.wait),
            since_ms: self.wall_ms,
        });
        self.waits.sort_by_key(Waiting::place);
        let room = self.check_room_in_queue(&without);
        if let Err(refusal) = room.and_then(|()| self.check_tangle(before, self.tangle())) {
            self.waits.retain(|wait| wait.id != id);
            return Err(refusal);
        }
        self.next_revision();
        self.run();
        let is_it = |effect: &Effect| matches!(effect, Effect::Settled { wait, .. } if *wait == WaitId(id));
        let settled = self.effects.iter().position(is_it).map(|index| self.effects.remove(index));
        Ok(match settled {
            Some(Effect::Settled { outcome: AcquireOutcome::Refused(end), .. }) => refused(end.reason, why.blockers),
            Some(Effect::Settled { outcome, .. }) => outcome,
            _ => {
                let (wait, attempt) = (WaitId(id), request.attempt);
                AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted: why }))
            }
        })
    }
}
