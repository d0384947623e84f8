//! Grants, ends, and the passing of time, in the model.

use holdfast_core::{
    AcquireOutcome, Claim, EntryContext, EventKind, Mode, Phase, Reason, RevokedReason, Rules, SessionEnd,
};

use crate::attempts::Attempts;
use crate::state::{EndingSession, Granted, Hold, Model, OwnerKey, Terms, not_granted};

/// Who a grant is for.
pub(crate) struct GrantContext<'a> {
    pub(crate) attempts: &'a Attempts,
    pub(crate) abandoned: &'a [u64],
    pub(crate) request_id: Option<&'a str>,
    /// Whether there is room for its metadata.
    pub(crate) metadata_fits: bool,
}

impl Hold {
    /// One that was just granted, and has no end.
    fn of(who: &OwnerKey, claim: &Claim, token: u64, terms: &Terms, attempts: Attempts) -> Self {
        Self {
            path: claim.path.clone(),
            who: who.clone(),
            mode: claim.mode,
            phase: Phase::Held,
            token,
            locked_at_ms: 0,
            deadline_ms: None,
            terms: terms.clone(),
            direct: false,
            attempts,
            reader_attempts: None,
            kept_from_ms: 0,
            kept_until_ms: 0,
            is_kept: false,
            latest_ask: None,
            forced_at_ms: None,
        }
    }

    /// Keeps it from others until an instant, and not shorter than before.
    fn keep_at_least(&mut self, from_ms: u64, until_ms: u64) {
        self.kept_until_ms = self.kept_until_ms.max(until_ms);
        self.kept_from_ms = if self.kept_until_ms > 0 { from_ms } else { 0 };
    }
}

impl Model {
    /// Always the first in the queue that can be granted, until nobody can or the slice is used up. Who is left is granted
    /// by the next entry.
    pub(crate) fn run_grant_loop(&mut self) {
        let may_grant = if self.has_pending_grants || self.is_frozen() { 0 } else { self.grants_left };
        self.grants_left -= may_grant;
        self.grants_left += self.grant_up_to(may_grant);
        self.has_pending_grants = self.first_grantable().is_some();
    }

    /// How many grants are left.
    fn grant_up_to(&mut self, mut left: usize) -> usize {
        while left > 0
            && let Some(index) = self.first_grantable()
        {
            left -= 1;
            let swept_with = self.swept_with(&self.waits[index]);
            if let Some(sweep) = swept_with {
                self.sweeps[sweep].ended_waits += 1;
            }
            if self.ending_session_of(&self.waits[index].who).is_some() || swept_with.is_some() {
                self.end_wait(index, Reason::Ended);
                continue;
            }
            if self.waits[index].ends_at_ms.is_some_and(|at_ms| at_ms <= self.visible_clock_ms) {
                self.end_wait(index, Reason::TimedOut);
                continue;
            }
            let wait = self.waits.remove(index);
            let call = GrantContext {
                attempts: &wait.attempts,
                abandoned: &[],
                request_id: wait.request_id.as_deref(),
                metadata_fits: true,
            };
            self.revoke_listed(&wait);
            let fencing_token = self.grant(&wait.who, &wait.claims, &wait.terms, call);
            self.claim_reported(&wait.who, wait.request_id.as_ref());
            self.wait_resolved(&wait, AcquireOutcome::Granted { fencing_token });
        }
        left
    }

    pub(crate) fn begin_slice(&mut self) {
        self.grants_left = self.bounds.grants_per_slice;
        self.ends_left = self.bounds.ends_per_slice;
    }

    pub(crate) fn grant(&mut self, who: &OwnerKey, claims: &[Claim], terms: &Terms, call: GrantContext<'_>) -> u64 {
        let deadline_ms = terms.ttl_ms.map(|ttl_ms| self.clock_ms + ttl_ms);
        let named = call.request_id.filter(|_| who.number != 0);
        let rules = self.rules;
        // What was granted by name is given back by that.
        let named_stays = named.is_some() || call.attempts.is_permanent;
        let callers = if named_stays { Attempts::of(0) } else { call.attempts.clone() };
        let until = self.end_kept(who, claims);
        let is_new =
            |model: &Self, claim: &Claim| model.hold_of(who, &claim.path).map(|own| own.mode) < Some(claim.mode);
        let new: Vec<Claim> = claims.iter().filter(|claim| is_new(self, claim)).cloned().collect();
        let token = if new.is_empty() { 0 } else { self.next_revision() };
        let mut found = vec![];
        for (claim, kept_until_ms) in claims.iter().zip(until) {
            let (wall_ms, clock_ms) = (self.wall_ms, self.clock_ms);
            let own_ms = if terms.at_least_ms > 0 { clock_ms + terms.at_least_ms } else { 0 };
            if let Some(own) = self.hold_of_mut(who, &claim.path) {
                if own.mode < claim.mode {
                    own.keep_at_least(clock_ms, own_ms);
                } else if terms.at_least_ms > 0 {
                    let from_ms = if own.kept_until_ms > 0 { own.kept_from_ms } else { clock_ms };
                    own.keep_at_least(from_ms, from_ms + terms.at_least_ms);
                }
                found.push(own.token);
                let (phase, terms) = (Phase::Held, terms.clone());
                if own.mode < claim.mode {
                    let mut before = std::mem::replace(&mut own.attempts, callers.clone());
                    let nobody = match rules {
                        Rules::ONE => !before.is_permanent && own.reader_attempts.is_none(),
                        _ => before.detach(0, call.abandoned, rules),
                    };
                    let before = if rules == Rules::ONE { Attempts::of(0) } else { before };
                    own.reader_attempts = (!callers.is_permanent && !nobody).then_some(before);
                    (own.mode, own.token, own.locked_at_ms) = (claim.mode, token, wall_ms);
                } else {
                    own.attempts.attach_to_hold(&callers, call.abandoned, rules);
                    own.reader_attempts = own.reader_attempts.take().filter(|_| !own.attempts.is_permanent);
                }
                let metadata = std::mem::take(&mut own.terms.metadata);
                (own.phase, own.terms, own.deadline_ms) = (phase, terms, deadline_ms);
                if !call.metadata_fits {
                    own.terms.metadata = metadata;
                }
                own.direct |= named.is_none();
                if own.mode > claim.mode {
                    self.downgrade(who, &claim.clone());
                } else if new.contains(claim) {
                    self.record_change(&claim.path);
                }
                continue;
            }
            let mut hold = Hold::of(who, claim, token, terms, callers.clone());
            (hold.locked_at_ms, hold.deadline_ms, hold.direct) = (wall_ms, deadline_ms, named.is_none());
            hold.keep_at_least(clock_ms, kept_until_ms.max(own_ms));
            self.holds.push(hold);
            self.record_change(&claim.path);
        }
        if !new.is_empty() {
            self.event(EventKind::Acquired, who, Some(token), new.clone());
        }
        let token = if new.is_empty() { found[0] } else { token };
        if let Some(id) = named {
            let live = claims.iter().map(|claim| claim.path.clone()).collect();
            let (id, who, claims) = (id.to_owned(), who.clone(), claims.to_vec());
            self.granted.push(Granted { id, who, claims, token, attempts: call.attempts.clone(), live });
        }
        self.end_contradicted_waits();
        token
    }

    pub(crate) fn downgrade(&mut self, who: &OwnerKey, claim: &Claim) {
        self.next_revision();
        let rules = self.rules;
        let own = self.hold_of_mut(who, &claim.path).expect("it is there");
        own.mode = Mode::Read;
        match own.reader_attempts.take() {
            _ if rules == Rules::ONE => own.attempts = Attempts::of(0),
            Some(readers) => own.attempts.attach_to_hold(&readers, &[], rules),
            None => {}
        }
        let token = own.token;
        self.record_change(&claim.path);
        self.event(EventKind::Acquired, who, Some(token), vec![Claim { mode: Mode::Read, ..claim.clone() }]);
        self.end_contradicted_waits();
    }

    /// Requests that what their owners hold now makes impossible.
    pub(crate) fn end_contradicted_waits(&mut self) {
        while let Some(index) = self.waits.iter().position(|wait| {
            let own = |claim: &Claim| self.hold_of(&wait.who, &claim.path).filter(|own| !own.is_kept);
            wait.claims.iter().any(|claim| match own(claim) {
                None => wait.upgrade,
                Some(own) => own.mode != claim.mode && !wait.upgrade,
            })
        }) {
            self.end_wait(index, Reason::Upgrade);
        }
    }

    pub(crate) fn end_wait(&mut self, index: usize, reason: Reason) {
        let wait = self.waits.remove(index);
        self.wait_resolved(&wait, AcquireOutcome::Refused(Box::new(not_granted(reason, vec![]))));
    }

    pub(crate) fn end_waits(&mut self, goes: impl Fn(&OwnerKey) -> bool) -> u64 {
        let mut ended = 0;
        while let Some(index) = self.waits.iter().position(|wait| goes(&wait.who)) {
            self.end_wait(index, Reason::Ended);
            ended += 1;
        }
        ended
    }

    /// What its owner gives up may be kept from others.
    pub(crate) fn end_hold(&mut self, index: usize, kind: EventKind) {
        if kind != EventKind::Released || !self.keep_from_others(index) {
            self.finish_hold(index, kind);
        }
    }

    fn finish_hold(&mut self, index: usize, kind: EventKind) {
        self.next_revision();
        let hold = self.holds.remove(index);
        if hold.phase == Phase::Held {
            match kind {
                EventKind::Expired => self.revoked(&hold, RevokedReason::Expired),
                EventKind::Deleted => self.revoked(&hold, RevokedReason::Deleted),
                EventKind::Reset => self.revoked(&hold, RevokedReason::Reset),
                _ => {}
            }
        }
        self.record_change(&hold.path);
        let claim = Claim { path: hold.path.clone(), mode: hold.mode };
        self.event(kind, &hold.who, Some(hold.token), vec![claim]);
        for granted in self.granted.iter_mut().filter(|granted| granted.who == hold.who) {
            granted.live.retain(|path| *path != hold.path);
        }
        self.granted.retain(|granted| !granted.live.is_empty());
        self.end_contradicted_waits();
    }

    /// All holds of those owners, in order of path, then of grant.
    pub(crate) fn end_holds(&mut self, goes: impl Fn(&OwnerKey) -> bool, kind: EventKind) -> u64 {
        let ends = |hold: &&Hold| goes(&hold.who) && (kind == EventKind::Reset || !hold.is_kept);
        let mut ended: Vec<_> = self.holds.iter().filter(ends).cloned().collect();
        ended.sort_by_key(|hold| (hold.path.clone(), hold.token));
        for gone in &ended {
            let index = self.holds.iter().position(|hold| hold.who == gone.who && hold.path == gone.path);
            self.end_hold(index.expect("it is there"), kind);
        }
        ended.len() as u64
    }

    /// Ends the phase of a hold: its transition comes first, if it has one.
    pub(crate) fn end_phase(&mut self, index: usize, from_ms: u64) {
        let hold = &mut self.holds[index];
        let is_kept = hold.kept_until_ms > from_ms;
        if hold.phase == Phase::Transition || (hold.terms.transition_ms == 0 && !is_kept) {
            let kind = if hold.is_kept { EventKind::Released } else { EventKind::Expired };
            return self.finish_hold(index, kind);
        }
        hold.phase = Phase::Transition;
        hold.deadline_ms = Some((from_ms + hold.terms.transition_ms).max(hold.kept_until_ms));
        let hold = hold.clone();
        self.revoked(&hold, RevokedReason::Expired);
    }

    pub(crate) fn end_session(&mut self, id: &str, why: SessionEnd) {
        let session = self.session(id).expect("it is open").clone();
        let is_its = |who: &OwnerKey| who.number == session.number;
        let holds = self.holds.iter().filter(|hold| is_its(&hold.who)).count();
        let things = holds + self.waits.iter().filter(|wait| is_its(&wait.who)).count();
        if why != SessionEnd::Reset {
            let Some(left) = self.ends_left.checked_sub(things) else { return self.begin_session_end(&session, why) };
            self.ends_left = left;
        }
        self.end_waits(is_its);
        match why {
            SessionEnd::Expired => {
                let ends = |hold: &&Hold| is_its(&hold.who) && !hold.is_kept;
                let mut holds: Vec<Hold> = self.holds.iter().filter(ends).cloned().collect();
                holds.sort_by_key(|hold| (hold.path.clone(), hold.token));
                for gone in holds {
                    let index = self.holds.iter().position(|hold| hold.who == gone.who && hold.path == gone.path);
                    self.end_phase(index.expect("it is there"), self.clock_ms);
                }
            }
            SessionEnd::Reset => {}
            _ => drop(self.end_holds(is_its, EventKind::Released)),
        }
        self.granted.retain(|granted| granted.who.number != session.number);
        self.next_revision();
        let owner = holdfast_core::Owner::Session { session_id: id.to_owned(), holder: None };
        self.event(EventKind::SessionEnded, &OwnerKey { owner, number: session.number }, None, vec![]);
        self.session_mut(id).expect("it is open").is_open = false;
        self.session_ended(&session, why);
    }

    /// The session is gone, whatever it still has.
    fn begin_session_end(&mut self, session: &crate::state::Session, reason: SessionEnd) {
        self.next_revision();
        self.session_mut(&session.id).expect("it is open").is_open = false;
        self.session_ended(session, reason);
        let (number, id, since_ms) = (session.number, session.id.clone(), self.clock_ms);
        self.ending_sessions.push(EndingSession { number, id, reason, since_ms });
        self.ending_sessions.sort_by_key(|ending| ending.number);
    }

    /// A slice of what was begun and is not finished.
    fn run_jobs(&mut self) {
        self.has_pending_grants = false;
        self.run_grant_loop();
        while self.ends_left > 0 && (!self.has_pending_grants || self.is_frozen()) {
            match self.ending_sessions.first().cloned() {
                Some(ending) => self.continue_session_end(&ending),
                None if self.sweeps.is_empty() => return,
                None => self.sweep(),
            }
            self.run_grant_loop();
        }
    }

    /// First waits in order of the queue, then holds in order of path; when something is left of the slice, all has ended.
    fn continue_session_end(&mut self, ending: &EndingSession) {
        while self.ends_left > 0
            && let Some(index) = self.waits.iter().position(|wait| wait.who.number == ending.number)
        {
            self.ends_left -= 1;
            self.end_wait(index, Reason::Ended);
        }
        let is_its = |hold: &Hold| hold.who.number == ending.number && hold.phase == Phase::Held;
        let mut holds: Vec<Hold> = self.holds.iter().filter(|hold| is_its(hold)).cloned().collect();
        holds.sort_by_key(|hold| (hold.path.clone(), hold.token));
        holds.truncate(self.ends_left);
        self.ends_left -= holds.len();
        for gone in holds {
            let index = self.holds.iter().position(|hold| hold.who == gone.who && hold.path == gone.path);
            let index = index.expect("it is there");
            let (who, path) = (self.holds[index].who.clone(), self.holds[index].path.clone());
            for granted in self.granted.iter_mut().filter(|granted| granted.who == who) {
                granted.live.retain(|other| *other != path);
            }
            self.granted.retain(|granted| !granted.live.is_empty());
            match ending.reason {
                SessionEnd::Expired => self.end_phase(index, ending.since_ms),
                _ => self.end_hold(index, EventKind::Released),
            }
        }
        if self.ends_left > 0 {
            self.next_revision();
            let owner = holdfast_core::Owner::Session { session_id: ending.id.clone(), holder: None };
            self.event(EventKind::SessionEnded, &OwnerKey { owner, number: ending.number }, None, vec![]);
            self.ending_sessions.remove(0);
        }
    }

    /// Moves the clock, goes on with what was left, and ends what is due: a slice of each.
    pub(crate) fn advance(&mut self, context: &EntryContext) {
        self.clock_ms = self.clock_ms.max(context.now_ms);
        (self.wall_ms, self.rules) = (context.wall_ms, context.rules);
        self.effects.clear();
        self.begin_slice();
        self.run_jobs();
        self.begin_slice();
        self.expire_due();
        self.visible_clock_ms = self.clock_ms;
    }

    /// Ends what is due in order of time, holds before waits, and grants after each.
    fn expire_due(&mut self) {
        let mut left = self.ends_left;
        while left > 0 && !self.has_pending_grants {
            let due = |at_ms: &u64| *at_ms <= self.clock_ms;
            let hold = self.holds.iter().filter_map(|hold| Some((hold.ends_at_ms().filter(due)?, hold.token))).min();
            let wait = self.waits.iter().filter_map(|wait| Some((wait.ends_at_ms.filter(due)?, wait.id))).min();
            match (hold, wait) {
                (None, None) => return,
                (Some((hold, _)), Some((wait, id))) if wait < hold => left -= self.time_out(id),
                (None, Some((_, id))) => left -= self.time_out(id),
                (Some((at_ms, token)), _) => left -= self.end_phases(at_ms, token, left),
            }
            self.run_grant_loop();
        }
    }

    fn time_out(&mut self, id: u64) -> usize {
        let index = self.waits.iter().position(|wait| wait.id == id).expect("it is due");
        self.end_wait(index, Reason::TimedOut);
        1
    }

    /// What was granted together and ends together, in order of path; how much of it.
    fn end_phases(&mut self, at_ms: u64, token: u64, at_most: usize) -> usize {
        let is_due = |hold: &&Hold| hold.ends_at_ms() == Some(at_ms) && hold.token == token;
        let mut paths: Vec<_> = self.holds.iter().filter(is_due).map(|hold| hold.path.clone()).collect();
        paths.sort();
        paths.truncate(at_most);
        for path in &paths {
            let index = self.holds.iter().position(|hold| hold.path == *path && hold.token == token);
            let index = index.expect("it is due");
            match self.holds[index].forced_at_ms == Some(at_ms) {
                true => self.finish_hold(index, EventKind::Deleted),
                false => self.end_phase(index, at_ms),
            }
        }
        paths.len()
    }

    fn first_deadline(&self) -> Option<u64> {
        let holds = self.holds.iter().filter_map(Hold::ends_at_ms);
        holds.chain(self.waits.iter().filter_map(|wait| wait.ends_at_ms)).min()
    }

    /// Whether there is something to go on with.
    pub(crate) fn has_backlog(&self) -> bool {
        let has_more = self.has_pending_grants || !self.ending_sessions.is_empty() || !self.sweeps.is_empty();
        has_more || self.first_deadline().is_some_and(|at_ms| at_ms <= self.clock_ms)
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        if self.has_backlog() { Some(self.clock_ms) } else { self.first_deadline() }
    }
}
