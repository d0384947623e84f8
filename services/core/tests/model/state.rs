//! What the naive model keeps: lists, searched from end to end for everything.

use holdfast_core::{
    AcquireOutcome, Blocker, Bounds, Claim, Effect, Event, EventKind, HolderView, JobState, Limits, LockState,
    LockView, Metadata, Mode, NamespaceRef, Owner, Path, Phase, Reason, Refused, RequestId, RevokedReason, Rules,
    SessionEnd, WaitId,
};

use crate::asks::Ask;
use crate::attempts::Attempts;
use crate::charge;
use crate::report::Report;
use crate::sweeps::Sweep;

/// An owner; `number` tells a session from an ended one of the same id. 0 for a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerKey {
    pub(crate) owner: Owner,
    pub(crate) number: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) transition_ms: u64,
    pub(crate) metadata: Metadata,
    pub(crate) asked_expires_at_ns: Option<i64>,
    pub(crate) at_least_ms: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) path: Path,
    pub(crate) who: OwnerKey,
    pub(crate) mode: Mode,
    pub(crate) phase: Phase,
    pub(crate) token: u64,
    pub(crate) locked_at_ms: u64,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) terms: Terms,
    /// Claimed by a call without a request id.
    pub(crate) direct: bool,
    /// Who counts on it.
    pub(crate) attempts: Attempts,
    /// Those made a writer of a reader, on which these count.
    pub(crate) reader_attempts: Option<Attempts>,
    /// When the time began and ends for which it is kept from others; both 0 without one.
    pub(crate) kept_from_ms: u64,
    pub(crate) kept_until_ms: u64,
    /// Its owner has released it.
    pub(crate) is_kept: bool,
    pub(crate) latest_ask: Option<Ask>,
    pub(crate) forced_at_ms: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) id: u64,
    pub(crate) upgrade: bool,
    pub(crate) who: OwnerKey,
    pub(crate) claims: Vec<Claim>,
    pub(crate) terms: Terms,
    pub(crate) request_id: Option<String>,
    pub(crate) attempts: Attempts,
    pub(crate) ends_at_ms: Option<u64>,
    pub(crate) since_ms: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) opening: RequestId,
    pub(crate) process_id: String,
    pub(crate) ttl_ms: u64,
    pub(crate) metadata: Metadata,
    pub(crate) opened_at_ms: u64,
    pub(crate) is_open: bool,
    pub(crate) report: Option<Report>,
}

/// A session that has ended and had more than a slice ends.
#[derive(Clone, Debug)]
pub(crate) struct EndingSession {
    pub(crate) number: u64,
    pub(crate) id: String,
    pub(crate) reason: SessionEnd,
    pub(crate) since_ms: u64,
}

/// A granted request of a session.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) id: String,
    pub(crate) who: OwnerKey,
    pub(crate) claims: Vec<Claim>,
    pub(crate) token: u64,
    pub(crate) attempts: Attempts,
    pub(crate) live: Vec<Path>,
}

/// One namespace and its clock.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) namespace: NamespaceRef,
    pub(crate) limits: Limits,
    pub(crate) bounds: Bounds,
    /// Those of the present entry.
    pub(crate) rules: Rules,
    pub(crate) clock_ms: u64,
    pub(crate) wall_ms: u64,
    pub(crate) revision: u64,
    /// The clock up to which what is due counts as over.
    pub(crate) visible_clock_ms: u64,
    /// Grants that are left of the slice.
    pub(crate) grants_left: usize,
    /// Holds and waits that may still end.
    pub(crate) ends_left: usize,
    /// Sessions that have ended and not all that they have, in order of opening.
    pub(crate) ending_sessions: Vec<EndingSession>,
    /// Long ends that were asked for, in order.
    pub(crate) sweeps: Vec<Sweep>,
    /// When those began that are done, and what they came to.
    pub(crate) finished: Vec<(u64, JobState)>,
    /// What the answer at hand has to wait for.
    pub(crate) awaits: Option<u64>,
    /// Somebody who could be granted is left for the next entry.
    pub(crate) has_pending_grants: bool,
    /// In order of arrival.
    pub(crate) holds: Vec<Hold>,
    /// In order of the queue.
    pub(crate) waits: Vec<Wait>,
    /// All that ever were.
    pub(crate) sessions: Vec<Session>,
    pub(crate) granted: Vec<Granted>,
    /// The last change of a path, as far as it is held.
    pub(crate) changes: Vec<(Path, u64)>,
    pub(crate) events: Vec<Event>,
    /// How many of them are forgotten.
    pub(crate) compacted_events: usize,
    /// Of the present entry; the locks in them are filled in at its end.
    pub(crate) effects: Vec<Effect>,
    /// How long the holds of the present request are kept from others.
    pub(crate) at_least_ms: u64,
}

pub(crate) fn related(one: &Path, other: &Path) -> bool {
    one.is_prefix_of(other) || other.is_prefix_of(one)
}

pub(crate) fn conflict(one: (&Path, Mode), other: (&Path, Mode)) -> bool {
    related(one.0, other.0) && (one.1 == Mode::Write || other.1 == Mode::Write)
}

pub(crate) fn not_granted(reason: Reason, blockers: Vec<Blocker>) -> Refused {
    Refused { reason, blockers, queue_position: None, cycle: vec![] }
}

impl Hold {
    /// When its phase ends, or the hold by force.
    pub(crate) fn ends_at_ms(&self) -> Option<u64> {
        self.deadline_ms.into_iter().chain(self.forced_at_ms).min()
    }

    pub(crate) fn conflicts(&self, who: &OwnerKey, claim: &Claim) -> bool {
        self.who != *who && conflict((&self.path, self.mode), (&claim.path, claim.mode))
    }
}

impl Wait {
    pub(crate) fn conflicts(&self, who: &OwnerKey, claim: &Claim) -> bool {
        self.who != *who && self.claims.iter().any(|own| conflict((&own.path, own.mode), (&claim.path, claim.mode)))
    }

    /// Upgrades first, then in order of arrival.
    pub(crate) fn queue_position(&self) -> (bool, u64) {
        (!self.upgrade, self.id)
    }
}

impl Model {
    pub(crate) fn new(namespace: NamespaceRef, limits: Limits, bounds: Bounds) -> Self {
        Self {
            namespace,
            limits,
            bounds,
            rules: Rules::LOWEST,
            clock_ms: 0,
            wall_ms: 0,
            revision: 0,
            visible_clock_ms: 0,
            grants_left: 0,
            ends_left: 0,
            ending_sessions: vec![],
            sweeps: vec![],
            finished: vec![],
            awaits: None,
            has_pending_grants: false,
            holds: vec![],
            waits: vec![],
            sessions: vec![],
            granted: vec![],
            changes: vec![],
            events: vec![],
            compacted_events: 0,
            effects: vec![],
            at_least_ms: 0,
        }
    }

    pub(crate) fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    pub(crate) fn session(&self, id: &str) -> Option<&Session> {
        self.sessions.iter().find(|session| session.is_open && session.id == id)
    }

    pub(crate) fn session_mut(&mut self, id: &str) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.is_open && session.id == id)
    }

    pub(crate) fn owner_key(&self, owner: &Owner) -> OwnerKey {
        let number = match owner {
            Owner::Process(_) => 0,
            Owner::Session { session_id, .. } => self.session(session_id).map_or(u64::MAX, |session| session.number),
        };
        OwnerKey { owner: owner.clone(), number }
    }

    pub(crate) fn process_id(&self, who: &OwnerKey) -> String {
        match &who.owner {
            Owner::Process(process_id) => process_id.clone(),
            Owner::Session { .. } => {
                let session = self.sessions.iter().find(|session| session.number == who.number);
                session.expect("sessions are never forgotten here").process_id.clone()
            }
        }
    }

    pub(crate) fn hold_of(&self, who: &OwnerKey, path: &Path) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.who == *who && hold.path == *path)
    }

    pub(crate) fn hold_of_mut(&mut self, who: &OwnerKey, path: &Path) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.who == *who && hold.path == *path)
    }

    pub(crate) fn record_change(&mut self, path: &Path) {
        self.changes.retain(|(other, _)| other != path);
        self.changes.push((path.clone(), self.revision));
    }

    pub(crate) fn event(&mut self, kind: EventKind, who: &OwnerKey, token: Option<u64>, claims: Vec<Claim>) {
        let event = Event {
            revision: self.revision,
            at_ms: self.wall_ms,
            kind,
            owner: who.owner.clone(),
            process_id: self.process_id(who),
            fencing_token: token,
            claims,
        };
        self.events.push(event);
        self.compacted_events =
            self.compacted_events.max(self.events.len().saturating_sub(self.bounds.retained_events));
        if self.rules >= Rules::TWO {
            self.shrink_events_to(self.limits.max_event_bytes);
        }
    }

    /// What the events are charged with that are not forgotten.
    pub(crate) fn event_bytes(&self) -> u64 {
        self.events[self.compacted_events..].iter().map(charge::event).sum()
    }

    pub(crate) fn shrink_events_to(&mut self, max: u64) {
        while self.event_bytes() > max {
            self.compacted_events += 1;
        }
    }

    pub(crate) fn wait_resolved(&mut self, wait: &Wait, outcome: AcquireOutcome) {
        let mut paths: Vec<Path> = wait.claims.iter().map(|claim| claim.path.clone()).collect();
        paths.sort();
        self.effects.push(Effect::WaitResolved {
            namespace: self.namespace.clone(),
            wait: WaitId(wait.id),
            attempt: wait.attempts.highest(),
            owner: wait.who.owner.clone(),
            request_id: wait.request_id.clone(),
            claims: wait.claims.clone(),
            outcome,
            locks: paths.iter().map(|path| self.bounded_view(path)).collect(),
        });
    }

    pub(crate) fn revoked(&mut self, hold: &Hold, reason: RevokedReason) {
        if let Owner::Session { session_id, .. } = &hold.who.owner
            && self.ending_session_of(&hold.who).is_none()
        {
            self.effects.push(Effect::Revoked {
                namespace: self.namespace.clone(),
                session_id: session_id.clone(),
                path: hold.path.clone(),
                fencing_token: hold.token,
                reason,
                current_owner: None,
            });
        }
    }

    pub(crate) fn session_ended(&mut self, session: &Session, reason: SessionEnd) {
        self.effects.push(Effect::SessionEnded {
            namespace: self.namespace.clone(),
            number: session.number,
            session_id: session.id.clone(),
            reason,
        });
    }

    /// The effects with locks and owners as they are now; the first new event of the entry at the end.
    pub(crate) fn take_effects(&mut self, first_event: usize) -> Vec<Effect> {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in &mut effects {
            match effect {
                Effect::WaitResolved { locks, .. } => {
                    locks.iter_mut().for_each(|lock| *lock = self.bounded_view(&lock.path));
                }
                Effect::Revoked { path, current_owner, .. } => {
                    *current_owner =
                        self.holds.iter().find(|hold| hold.path == *path).map(|hold| self.holder_view(hold));
                }
                _ => {}
            }
        }
        if let Some(event) = self.events.get(first_event) {
            let (namespace, from_revision) = (self.namespace.clone(), event.revision);
            effects.push(Effect::Events { namespace, from_revision });
        }
        effects
    }

    /// Its phase, and when that ends. What is over is so at once, though its end may come later.
    pub(crate) fn phase_of(&self, hold: &Hold) -> (Phase, Option<u64>) {
        if let Some(at_ms) = hold.forced_at_ms.filter(|at_ms| *at_ms <= self.visible_clock_ms) {
            return (Phase::Transition, Some(at_ms));
        }
        let over_at = |at_ms: u64| (Phase::Transition, Some(at_ms.max(hold.kept_until_ms)));
        if hold.phase != Phase::Held {
            return (hold.phase, hold.ends_at_ms());
        }
        if let Some(ending) = self.ending_session_of(&hold.who) {
            let transition_ms = if ending.reason == SessionEnd::Expired { hold.terms.transition_ms } else { 0 };
            return over_at(ending.since_ms + transition_ms);
        }
        match self.swept_since_ms(hold) {
            Some((since_ms, true)) => return (Phase::Transition, Some(since_ms)),
            Some((since_ms, false)) => return over_at(since_ms),
            None => {}
        }
        match hold.deadline_ms.filter(|at_ms| *at_ms <= self.visible_clock_ms) {
            Some(at_ms) => over_at(at_ms + hold.terms.transition_ms),
            None => (hold.phase, hold.ends_at_ms()),
        }
    }

    pub(crate) fn ending_session_of(&self, who: &OwnerKey) -> Option<&EndingSession> {
        self.ending_sessions.iter().find(|ending| ending.number == who.number)
    }

    pub(crate) fn is_over(&self, hold: &Hold) -> bool {
        self.phase_of(hold).1.is_some_and(|at_ms| at_ms <= self.visible_clock_ms)
    }

    pub(crate) fn holder_view(&self, hold: &Hold) -> HolderView {
        HolderView {
            owner: hold.who.owner.clone(),
            process_id: self.process_id(&hold.who),
            mode: hold.mode,
            fencing_token: hold.token,
            locked_at_ms: hold.locked_at_ms,
            deadline_ms: self.phase_of(hold).1,
            requested_expires_at_ns: hold.terms.asked_expires_at_ns,
            phase: self.phase_of(hold).0,
            metadata: hold.terms.metadata.clone(),
            release_requested: hold.release_requested().map(Box::new),
        }
    }

    pub(crate) fn waiting_blocker(&self, wait: &Wait, claim: &Claim) -> Blocker {
        let conflicts = |own: &&Claim| conflict((&own.path, own.mode), (&claim.path, claim.mode));
        let own = wait.claims.iter().find(conflicts).expect("it is in the way");
        let holder = HolderView {
            owner: wait.who.owner.clone(),
            process_id: self.process_id(&wait.who),
            mode: own.mode,
            fencing_token: 0,
            locked_at_ms: wait.since_ms,
            deadline_ms: wait.ends_at_ms,
            requested_expires_at_ns: wait.terms.asked_expires_at_ns,
            phase: Phase::Held,
            metadata: wait.terms.metadata.clone(),
            release_requested: None,
        };
        Blocker { path: own.path.clone(), waiting: true, holder }
    }

    pub(crate) fn bounded_view(&self, path: &Path) -> LockView {
        self.view(path, self.bounds.max_readers_in_reply)
    }

    /// The same, with the owner's own hold as the last reader if it came later.
    pub(crate) fn view_of_owner(&self, path: &Path, own: &OwnerKey) -> LockView {
        let mut view = self.bounded_view(path);
        let mut readers = self.holds.iter().filter(|hold| hold.path == *path && hold.mode == Mode::Read);
        let late = readers.position(|hold| hold.who == *own).filter(|at| *at >= self.bounds.max_readers_in_reply);
        if let (Some(_), Some(last), Some(own)) = (late, view.read_lock_holders.last_mut(), self.hold_of(own, path)) {
            *last = self.holder_view(own);
        }
        view
    }

    pub(crate) fn view(&self, path: &Path, max_readers: usize) -> LockView {
        let here: Vec<&Hold> = self.holds.iter().filter(|hold| hold.path == *path).collect();
        let of = |mode| here.iter().filter(move |hold| hold.mode == mode).map(|hold| self.holder_view(hold));
        let change = self.changes.iter().find(|(other, _)| other == path).filter(|_| !here.is_empty());
        let waiting = self.waits.iter().filter(|wait| wait.claims.iter().any(|claim| claim.path == *path));
        LockView {
            path: path.clone(),
            state: match here.first().map(|hold| hold.mode) {
                None => LockState::Unlocked,
                Some(Mode::Read) => LockState::ReadLocked,
                Some(Mode::Write) => LockState::WriteLocked,
            },
            locked_at_ms: here.first().map(|hold| hold.locked_at_ms),
            write_lock_holder: of(Mode::Write).next(),
            read_lock_holders: of(Mode::Read).take(max_readers).collect(),
            holders_total: here.len() as u64,
            waiting: waiting.count() as u64,
            revision: change.map_or(self.revision, |(_, revision)| *revision),
        }
    }
}
