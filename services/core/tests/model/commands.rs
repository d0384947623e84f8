//! What the model answers to commands that end something.

use holdfast_core::{
    Answer, Cancel, Claim, Effect, EventKind, Owner, Path, Phase, Reason, Release, Reset, Rules, SessionEnd, ToRelease,
};

use crate::acquire::{Answered, Found, distinct};
use crate::state::{Model, Session, Who};
use crate::sweeps::Target;

impl Model {
    pub(crate) fn release(&mut self, request: &Release) -> Answered {
        if let Owner::Session { session_id, .. } = &request.owner
            && !self.admit(session_id, request.message)?
        {
            let who = self.who(&request.owner);
            if matches!(request.what, ToRelease::All) {
                self.await_sweep(&released_as(&request.owner, who));
            }
            return Ok(Answer::Ignored);
        }
        let who = self.who(&request.owner);
        let (mut released, mut paths) = (false, vec![]);
        match &request.what {
            ToRelease::Paths { paths: named, fencing_token } => {
                paths = named.clone();
                paths.sort();
                paths.dedup();
                for path in &paths {
                    let token = self.own(&who, path).map(|own| own.token);
                    if token.is_some() && (fencing_token.is_none() || *fencing_token == token) {
                        released = true;
                        self.release_hold(&who, path);
                    }
                }
            }
            ToRelease::Request { request_id } => {
                let is_its = |it: &Who| if who.number == 0 { *it == who } else { it.number == who.number };
                let named = |id: Option<&String>, it: &Who| id == Some(request_id) && is_its(it);
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
            ToRelease::All => {
                let whole = matches!(&request.owner, Owner::Session { holder: None, .. });
                let goes = |it: &Who| if whole { it.number == who.number } else { *it == who };
                let holds = self.holds.iter().filter(|hold| goes(&hold.who)).count();
                let things = holds + self.waits.iter().filter(|wait| goes(&wait.who)).count();
                let Some(left) = self.ends_left.checked_sub(things) else {
                    self.begin_sweep(released_as(&request.owner, who))?;
                    return Ok(Answer::Released { released: true, locks: vec![] });
                };
                self.ends_left = left;
                let ended = self.end_waits(goes);
                let held = self.holds.iter().filter(|hold| goes(&hold.who));
                paths = held.map(|hold| hold.path.clone()).collect();
                released = self.end_holds(goes, EventKind::Released) + ended > 0;
            }
        }
        paths.sort();
        paths.dedup();
        if matches!(request.what, ToRelease::All) {
            paths.truncate(self.bounds.locks_shown);
        }
        self.run();
        Ok(Answer::Released { released, locks: paths.iter().map(|path| self.view_of_some(path)).collect() })
    }

    pub(crate) fn release_hold(&mut self, who: &Who, path: &Path) {
        let index = self.holds.iter().position(|hold| hold.who == *who && hold.path == *path);
        self.end_hold(index.expect("it is there"), EventKind::Released);
    }

    /// A hold ends with the last unreleased request that claims it.
    fn release_granted(&mut self, index: usize) -> Vec<Path> {
        let granted = self.granted.remove(index);
        let mut paths = granted.live;
        paths.sort();
        for path in &paths {
            let own = self.own(&granted.who, path).expect("what is live is held");
            let claims = |other: &crate::state::Granted| other.who == granted.who && other.live.contains(path);
            if !own.direct && !self.granted.iter().any(claims) {
                self.release_hold(&granted.who, path);
            }
        }
        paths
    }

    pub(crate) fn delete(&mut self, path: &Path) -> Answered {
        let holds = self.holds.iter().filter(|hold| hold.path == *path).count();
        let Some(left) = self.ends_left.checked_sub(holds) else {
            self.begin_sweep(Target::Path(path.clone()))?;
            return Ok(Answer::Done);
        };
        self.ends_left = left;
        while let Some(index) = self.holds.iter().position(|hold| hold.path == *path) {
            self.end_hold(index, EventKind::Deleted);
        }
        self.run();
        Ok(Answer::Done)
    }

    pub(crate) fn cancel(&mut self, cancel: &Cancel, left: &[u64]) -> Answer {
        let (who, rules, attempt) = (self.who(&cancel.owner), self.rules, cancel.attempt);
        let claims = distinct(&cancel.claims);
        let (mut left_queue, mut given_back) = (false, false);
        match self.find(&who, cancel.request_id.as_deref(), &claims) {
            Ok(Some(Found::Waiting(index))) => {
                left_queue = self.waits[index].callers.leave(attempt, left, rules);
                if left_queue {
                    self.end_wait(index, Reason::Ended);
                }
            }
            Ok(Some(Found::Granted(index))) => {
                let callers = &mut self.granted[index].callers;
                given_back = !callers.stays && callers.leave(attempt, left, rules);
                if given_back {
                    self.release_granted(index);
                }
            }
            Ok(None) => {
                let mut claims = claims;
                claims.sort();
                for claim in &claims {
                    given_back |= self.give_back(&who, claim, cancel, left);
                }
            }
            Err(_) => {}
        }
        self.run();
        Answer::Cancelled { left_queue, given_back }
    }

    fn give_back(&mut self, who: &Who, claim: &Claim, cancel: &Cancel, left: &[u64]) -> bool {
        let (rules, attempt) = (self.rules, cancel.attempt);
        let Some(own) = self.own_mut(who, &claim.path) else { return false };
        if rules > Rules::ONE && own.reader.as_mut().is_some_and(|readers| readers.leave(attempt, left, rules)) {
            own.reader = None;
        }
        if own.callers.stays || !own.callers.leave(attempt, left, rules) {
            return false;
        }
        match own.reader.take() {
            Some(readers) => {
                own.callers = readers;
                self.weaken(who, claim);
            }
            None => self.release_hold(who, &claim.path),
        }
        true
    }

    pub(crate) fn reset(&mut self, reset: &Reset) -> Answered {
        let target = self.dead(reset);
        let (holds, waits, sessions) = self.covered(&target);
        let left = self.ends_left.checked_sub(holds + waits + sessions.len());
        let Some(left) = left.filter(|_| !self.is_frozen()) else {
            self.begin_sweep(target)?;
            return Ok(Answer::Reset { removed_holds: 0, removed_waiters: 0 });
        };
        self.ends_left = left;
        let removed_waiters = self.end_waits(|who| target.covers(who));
        let removed_holds = self.end_holds(|who| target.covers(who), EventKind::Reset);
        sessions.iter().for_each(|id| self.end_session(id, SessionEnd::Reset));
        self.run();
        Ok(Answer::Reset { removed_holds, removed_waiters })
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
fn released_as(owner: &Owner, who: Who) -> Target {
    match owner {
        Owner::Session { holder: None, .. } => Target::Session(who.number),
        _ => Target::Owner(who),
    }
}
