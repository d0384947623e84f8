//! What the model answers to commands that end something.

use holdfast_core::{
    Cancel, Claim, Effect, EventKind, Owner, Path, Phase, Reason, Release, ReleaseTarget, Reset, Response, Rules,
    SessionEnd,
};

use crate::acquire::{CommandResult, NamedRequest, distinct_claims};
use crate::state::{Model, OwnerKey, Session};
use crate::sweeps::Target;

impl Model {
    pub(crate) fn release(&mut self, request: &Release) -> CommandResult {
        if let Owner::Session { session_id, .. } = &request.owner
            && !self.check_sequence(session_id, request.message)?
        {
            let who = self.owner_key(&request.owner);
            if matches!(request.what, ReleaseTarget::All) {
                self.await_sweep(&sweep_target_of(&request.owner, who));
            }
            return Ok(Response::Ignored);
        }
        let who = self.owner_key(&request.owner);
        let (mut released, mut paths) = (false, vec![]);
        match &request.what {
            ReleaseTarget::Paths { paths: named, fencing_token } => {
                paths = named.clone();
                paths.sort();
                paths.dedup();
                for path in &paths {
                    let own = self.hold_of(&who, path).filter(|own| !own.is_kept);
                    let token = own.map(|own| own.token);
                    if token.is_some() && (fencing_token.is_none() || *fencing_token == token) {
                        released = true;
                        self.release_hold(&who, path);
                    }
                }
            }
            ReleaseTarget::Request { request_id } => {
                let is_its = |it: &OwnerKey| if who.number == 0 { *it == who } else { it.number == who.number };
                let named = |id: Option<&String>, it: &OwnerKey| id == Some(request_id) && is_its(it);
                let waiting = self.waits.iter().position(|wait| named(wait.request_id.as_ref(), &wait.who));
                let granted = self.granted.iter().position(|it| named(Some(&it.id), &it.who) && it.who.number != 0);
                if let Some(index) = waiting {
                    paths = self.waits[index].claims.iter().map(|claim| claim.path.clone()).collect();
                    self.end_wait(index, Reason::Ended);
                } else if let Some(index) = granted {
                    paths = self.release_granted(index);
                }
                released = waiting.is_some() || granted.is_some();
            }
            ReleaseTarget::All => {
                let whole = matches!(&request.owner, Owner::Session { holder: None, .. });
                let goes = |it: &OwnerKey| if whole { it.number == who.number } else { *it == who };
                let holds = self.holds.iter().filter(|hold| goes(&hold.who)).count();
                let things = holds + self.waits.iter().filter(|wait| goes(&wait.who)).count();
                let Some(left) = self.ends_left.checked_sub(things) else {
                    self.begin_sweep(sweep_target_of(&request.owner, who))?;
                    return Ok(Response::Released { released: true, locks: vec![] });
                };
                self.ends_left = left;
                let ended = self.end_waits(goes);
                let held = self.holds.iter().filter(|hold| goes(&hold.who) && !hold.is_kept);
                paths = held.map(|hold| hold.path.clone()).collect();
                released = self.end_holds(goes, EventKind::Released) + ended > 0;
            }
        }
        paths.sort();
        paths.dedup();
        if matches!(request.what, ReleaseTarget::All) {
            paths.truncate(self.bounds.max_locks_in_reply);
        }
        self.run_grant_loop();
        Ok(Response::Released { released, locks: paths.iter().map(|path| self.bounded_view(path)).collect() })
    }

    pub(crate) fn release_hold(&mut self, who: &OwnerKey, path: &Path) {
        let index = self.holds.iter().position(|hold| hold.who == *who && hold.path == *path);
        self.end_hold(index.expect("it is there"), EventKind::Released);
    }

    /// A hold ends with the last unreleased request that claims it.
    fn release_granted(&mut self, index: usize) -> Vec<Path> {
        let granted = self.granted.remove(index);
        let mut paths = granted.live;
        paths.sort();
        for path in &paths {
            let own = self.hold_of(&granted.who, path).expect("what is live is held");
            let claims = |other: &crate::state::Granted| other.who == granted.who && other.live.contains(path);
            if !own.direct && !self.granted.iter().any(claims) {
                self.release_hold(&granted.who, path);
            }
        }
        paths
    }

    pub(crate) fn delete(&mut self, path: &Path) -> CommandResult {
        let holds = self.holds.iter().filter(|hold| hold.path == *path).count();
        let Some(left) = self.ends_left.checked_sub(holds) else {
            self.begin_sweep(Target::Path(path.clone()))?;
            return Ok(Response::Done);
        };
        self.ends_left = left;
        while let Some(index) = self.holds.iter().position(|hold| hold.path == *path) {
            self.end_hold(index, EventKind::Deleted);
        }
        self.run_grant_loop();
        Ok(Response::Done)
    }

    pub(crate) fn cancel(&mut self, cancel: &Cancel, left: &[u64]) -> Response {
        let (who, rules, attempt) = (self.owner_key(&cancel.owner), self.rules, cancel.attempt);
        let claims = distinct_claims(&cancel.claims);
        let (mut left_queue, mut grant_released) = (false, false);
        match self.named_request(&who, cancel.request_id.as_deref(), &claims) {
            Ok(Some(NamedRequest::Waiting(index))) => {
                left_queue = self.waits[index].attempts.detach(attempt, left, rules);
                if left_queue {
                    self.end_wait(index, Reason::Ended);
                }
            }
            Ok(Some(NamedRequest::Granted(index))) => {
                let callers = &mut self.granted[index].attempts;
                grant_released = !callers.is_permanent && callers.detach(attempt, left, rules);
                if grant_released {
                    self.release_granted(index);
                }
            }
            Ok(None) => {
                let mut claims = claims;
                claims.sort();
                for claim in &claims {
                    grant_released |= self.rollback_hold(&who, claim, cancel, left);
                }
            }
            Err(_) => {}
        }
        self.run_grant_loop();
        Response::Cancelled { left_queue, grant_released }
    }

    fn rollback_hold(&mut self, who: &OwnerKey, claim: &Claim, cancel: &Cancel, left: &[u64]) -> bool {
        let (rules, attempt) = (self.rules, cancel.attempt);
        let Some(own) = self.hold_of_mut(who, &claim.path) else { return false };
        if rules > Rules::ONE
            && own.reader_attempts.as_mut().is_some_and(|readers| readers.detach(attempt, left, rules))
        {
            own.reader_attempts = None;
        }
        if own.attempts.is_permanent || !own.attempts.detach(attempt, left, rules) {
            return false;
        }
        match own.reader_attempts.take() {
            Some(readers) => {
                own.attempts = readers;
                self.downgrade(who, claim);
            }
            None => self.release_hold(who, &claim.path),
        }
        true
    }

    pub(crate) fn reset(&mut self, reset: &Reset) -> CommandResult {
        let target = self.reset_target(reset);
        let (holds, waits, sessions) = self.covered(&target);
        let left = self.ends_left.checked_sub(holds + waits + sessions.len());
        let Some(left) = left.filter(|_| !self.is_frozen()) else {
            self.begin_sweep(target)?;
            return Ok(Response::Reset { removed_holds: 0, removed_waiters: 0 });
        };
        self.ends_left = left;
        let removed_waiters = self.end_waits(|who| target.covers(who));
        let removed_holds = self.end_holds(|who| target.covers(who), EventKind::Reset);
        sessions.iter().for_each(|id| self.end_session(id, SessionEnd::Reset));
        self.run_grant_loop();
        Ok(Response::Reset { removed_holds, removed_waiters })
    }

    pub(crate) fn is_current(&self, path: &Path, token: u64) -> bool {
        let is_it = |hold: &crate::state::Hold| hold.path == *path && hold.token == token;
        self.holds.iter().any(|hold| is_it(hold) && self.phase_of(hold).0 == Phase::Held)
    }

    /// The deletion of the namespace: what the shard has to tell.
    pub(crate) fn purge(&mut self) -> Vec<Effect> {
        while !self.waits.is_empty() {
            self.end_wait(0, Reason::Ended);
        }
        let open: Vec<Session> = self.sessions.iter().filter(|session| session.is_open).cloned().collect();
        open.iter().for_each(|session| self.session_ended(session, SessionEnd::NamespaceDeleted));
        self.revision += self.holds.len() as u64;
        self.holds.clear();
        let mut effects = self.take_effects(self.events.len());
        effects.push(Effect::NamespaceClosed { namespace: self.namespace.clone() });
        effects
    }
}

/// All that goes with an owner.
fn sweep_target_of(owner: &Owner, who: OwnerKey) -> Target {
    match owner {
        Owner::Session { holder: None, .. } => Target::Session(who.number),
        _ => Target::Owner(who),
    }
}
