//! A lock table that is obviously right: one list of holds, searched from end to end for everything.

use holdfast_core::{
    Acquire, Answer, Blocker, Claim, FencingToken, HolderView, Limits, LockState, LockView, Mode, NotGranted, Owner,
    Path, Phase, Reason, Release,
};

use crate::support::WALL_AHEAD_MS;

#[derive(Clone, Debug)]
struct Hold {
    path: Path,
    transition_ms: u64,
    view: HolderView,
}

/// The holds of one namespace in order of arrival.
pub(crate) struct Model {
    holds: Vec<Hold>,
    /// The last change of a path, as far as it is held.
    changes: Vec<(Path, u64)>,
    pub(crate) revision: u64,
    clock_ms: u64,
    limits: Limits,
}

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { holds: vec![], changes: vec![], revision: 0, clock_ms: 0, limits }
    }

    pub(crate) fn advance(&mut self, now_ms: u64) {
        self.clock_ms = self.clock_ms.max(now_ms);
        while let Some(place) = self.next_due() {
            let hold = &mut self.holds[place];
            if hold.view.phase == Phase::Held && hold.transition_ms > 0 {
                hold.view.phase = Phase::Transition;
                hold.view.deadline_ms = hold.view.deadline_ms.map(|deadline| deadline + hold.transition_ms);
            } else {
                self.end(place);
            }
        }
    }

    /// The due hold with the smallest deadline; of equal ones the oldest token, then the smallest path.
    fn next_due(&self) -> Option<usize> {
        let due = (0..self.holds.len()).filter(|place| self.holds[*place].view.deadline_ms <= Some(self.clock_ms));
        due.min_by_key(|place| {
            let hold = &self.holds[*place];
            (hold.view.deadline_ms, hold.view.fencing_token, hold.path.clone())
        })
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.holds.iter().filter_map(|hold| hold.view.deadline_ms).min()
    }

    fn end(&mut self, place: usize) {
        self.revision += 1;
        let hold = self.holds.remove(place);
        self.changed(&hold.path);
    }

    fn changed(&mut self, path: &Path) {
        self.changes.retain(|(other, _)| other != path);
        if self.holds.iter().any(|hold| hold.path == *path) {
            self.changes.push((path.clone(), self.revision));
        }
    }

    /// Nothing when a quota is exceeded.
    pub(crate) fn acquire(&mut self, request: &Acquire) -> Option<Answer> {
        let mut claims: Vec<Claim> = vec![];
        for claim in &request.claims {
            match claims.iter_mut().find(|other| other.path == claim.path) {
                Some(other) if claim.mode == Mode::Write => other.mode = Mode::Write,
                Some(_) => {}
                None => claims.push(claim.clone()),
            }
        }
        let refusal = claims.iter().find_map(|claim| self.refusal(&request.owner, claim, request.fencing_token));
        let outcome = match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(self.grant(request, &claims)?),
        };
        Some(Answer::Acquired { outcome, locks: self.views(claims.iter().map(|claim| &claim.path)) })
    }

    fn refusal(&self, owner: &Owner, claim: &Claim, token: Option<FencingToken>) -> Option<NotGranted> {
        let refuse = |reason, holds: Vec<&Hold>| {
            let blocker =
                |hold: &&Hold| Blocker { path: claim.path.clone(), waiting: false, holder: hold.view.clone() };
            let blockers = holds.iter().take(16).map(blocker).collect();
            Some(NotGranted { reason, blockers, queue_position: None })
        };
        let here = || self.holds.iter().filter(|hold| hold.path == claim.path);
        let own = here().find(|hold| hold.view.owner == *owner);
        if token.is_some() && own.map(|hold| hold.view.fencing_token) != token {
            return refuse(Reason::NotHeld, vec![]);
        }
        if let Some(own) = own {
            return if own.view.mode == claim.mode { None } else { refuse(Reason::Upgrade, vec![own]) };
        }
        let conflicts = |hold: &&Hold| hold.view.mode == Mode::Write || claim.mode == Mode::Write;
        let blockers: Vec<&Hold> = here().filter(conflicts).collect();
        if blockers.is_empty() {
            None
        } else if blockers.iter().all(|hold| hold.view.phase == Phase::Transition) {
            refuse(Reason::Transition, blockers)
        } else {
            refuse(Reason::Held, blockers)
        }
    }

    fn grant(&mut self, request: &Acquire, claims: &[Claim]) -> Option<FencingToken> {
        let is_own = |hold: &Hold, claim: &Claim| hold.path == claim.path && hold.view.owner == request.owner;
        let new: Vec<&Claim> =
            claims.iter().filter(|claim| !self.holds.iter().any(|hold| is_own(hold, claim))).collect();
        let readers = |claim: &Claim| self.holds.iter().filter(|hold| hold.path == claim.path).count();
        let is_crowded =
            |claim: &&&Claim| claim.mode == Mode::Read && readers(claim) >= self.limits.max_readers_per_lock as usize;
        let is_full = self.holds.len() + new.len() > self.limits.max_holds_per_namespace as usize;
        if (!new.is_empty() && is_full) || new.iter().any(|claim| is_crowded(&claim)) {
            return None;
        }
        let deadline_ms = Some(self.clock_ms + request.ttl_ms.unwrap());
        let mut found = None;
        for claim in claims {
            for hold in self.holds.iter_mut().filter(|hold| is_own(hold, claim)) {
                hold.transition_ms = request.transition_ms;
                hold.view.phase = Phase::Held;
                hold.view.deadline_ms = deadline_ms;
                hold.view.metadata = request.metadata.clone();
                hold.view.asked_expires_at_ns = request.asked_expires_at_ns;
                found = found.or(Some(hold.view.fencing_token));
            }
        }
        if new.is_empty() {
            return found;
        }
        self.revision += 1;
        for claim in new {
            let Owner::Process(process_id) = &request.owner else { panic!("only processes hold") };
            let view = HolderView {
                owner: request.owner.clone(),
                process_id: process_id.clone(),
                mode: claim.mode,
                fencing_token: self.revision,
                locked_at_ms: WALL_AHEAD_MS + self.clock_ms,
                deadline_ms,
                asked_expires_at_ns: request.asked_expires_at_ns,
                phase: Phase::Held,
                metadata: request.metadata.clone(),
            };
            self.holds.push(Hold { path: claim.path.clone(), transition_ms: request.transition_ms, view });
            self.changed(&claim.path);
        }
        Some(self.revision)
    }

    pub(crate) fn release(&mut self, request: &Release) -> Answer {
        let mut paths = request.paths.clone();
        paths.sort();
        paths.dedup();
        let mut released = false;
        for path in &paths {
            let place = self.holds.iter().position(|hold| {
                let token = request.fencing_token.unwrap_or(hold.view.fencing_token);
                hold.path == *path && hold.view.owner == request.owner && hold.view.fencing_token == token
            });
            if let Some(place) = place {
                self.end(place);
                released = true;
            }
        }
        Answer::Released { released, locks: self.views(paths.iter()) }
    }

    pub(crate) fn delete(&mut self, path: &Path) {
        while let Some(place) = self.holds.iter().position(|hold| hold.path == *path) {
            self.end(place);
        }
    }

    pub(crate) fn is_current(&self, path: &Path, token: FencingToken) -> bool {
        let found = self.holds.iter().find(|hold| hold.path == *path && hold.view.fencing_token == token);
        found.is_some_and(|hold| hold.view.phase == Phase::Held)
    }

    fn views<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> Vec<LockView> {
        let mut paths: Vec<&Path> = paths.collect();
        paths.sort();
        paths.into_iter().map(|path| self.view(path, 16)).collect()
    }

    pub(crate) fn view(&self, path: &Path, max_readers: usize) -> LockView {
        let here: Vec<&Hold> = self.holds.iter().filter(|hold| hold.path == *path).collect();
        let of = |mode| here.iter().filter(move |hold| hold.view.mode == mode).map(|hold| hold.view.clone());
        let change = self.changes.iter().find(|(other, _)| other == path);
        LockView {
            path: path.clone(),
            state: match here.first().map(|hold| hold.view.mode) {
                None => LockState::Unlocked,
                Some(Mode::Read) => LockState::ReadLocked,
                Some(Mode::Write) => LockState::WriteLocked,
            },
            locked_at_ms: here.first().map(|hold| hold.view.locked_at_ms),
            write_lock_holder: of(Mode::Write).next(),
            read_lock_holders: of(Mode::Read).take(max_readers).collect(),
            holders_total: here.len() as u64,
            waiting: 0,
            revision: change.map_or(self.revision, |(_, revision)| *revision),
        }
    }

    pub(crate) fn held_paths(&self) -> Vec<Path> {
        let mut paths: Vec<Path> = self.holds.iter().map(|hold| hold.path.clone()).collect();
        paths.sort();
        paths.dedup();
        paths
    }
}
