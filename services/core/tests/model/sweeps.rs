//! How the model ends much at once that was asked for.

use std::collections::BTreeSet;

use holdfast_core::{Acquire, CommandError, EventKind, JobState, Owner, Path, Reason, Reset, SessionEnd};

use crate::acquire::NamedRequest;
use crate::report::Report;
use crate::state::{Hold, Model, OwnerKey, Wait as Waiting};

/// What goes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Owner(OwnerKey),
    Session(u64),
    Path(Path),
    Reset(Reset, BTreeSet<String>),
    Unlisted(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) began: u64,
    since_ms: u64,
    pub(crate) target: Target,
    /// Holds before that path, or at it too, were looked at.
    after: Option<(Path, bool)>,
    pub(crate) ended_holds: u64,
    pub(crate) ended_waits: u64,
    /// Whether it is known which processes go.
    old_processes_known: bool,
}

impl Target {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Owner(one), Self::Owner(other)) => one == other,
            (Self::Session(one), Self::Session(other)) => one == other,
            (Self::Path(one), Self::Path(other)) => one == other,
            (Self::Reset(one, _), Self::Reset(other, _)) => {
                let live = |reset: &Reset| reset.live_owners.iter().cloned().collect::<BTreeSet<String>>();
                live(one) == live(other) && one.before_revision == other.before_revision
            }
            (Self::Unlisted(one), Self::Unlisted(other)) => one == other,
            _ => false,
        }
    }

    pub(crate) fn covers(&self, who: &OwnerKey) -> bool {
        match (self, &who.owner) {
            (Self::Owner(owner), _) => owner == who,
            (Self::Session(number) | Self::Unlisted(number), _) => who.number == *number,
            (Self::Path(_), _) => false,
            (Self::Reset(reset, old), Owner::Process(id)) => !reset.live_owners.contains(id) && old.contains(id),
            (Self::Reset(..), Owner::Session { session_id, .. }) => self.covers_session(session_id, who.number),
        }
    }

    fn covers_session(&self, id: &str, number: u64) -> bool {
        let Self::Reset(reset, _) = self else { return false };
        let is_live = reset.live_owners.iter().any(|live| live == id);
        !is_live && reset.before_revision.is_none_or(|before| number < before)
    }
}

impl Model {
    pub(crate) fn begin_sweep(&mut self, target: Target) -> Result<(), CommandError> {
        if self.await_sweep(&target) && !self.awaits.is_some_and(|began| self.has_newer(&target, began)) {
            return Ok(());
        }
        self.awaits = None;
        if self.sweeps.len() >= 16 || (matches!(target, Target::Reset(..)) && self.is_frozen()) {
            return Err(CommandError::Busy(String::new()));
        }
        let (began, since_ms) = (self.next_revision(), self.clock_ms);
        self.sweeps.push(Sweep {
            began,
            since_ms,
            target,
            after: None,
            ended_holds: 0,
            ended_waits: 0,
            old_processes_known: false,
        });
        self.awaits = Some(began);
        Ok(())
    }

    /// Whether something came of it that the one that goes on leaves.
    fn has_newer(&self, target: &Target, began: u64) -> bool {
        match target {
            Target::Path(path) => self.holds.iter().any(|hold| hold.path == *path && hold.token > began),
            Target::Reset(..) => {
                let mut open = self.sessions.iter().filter(|session| session.is_open && session.number > began);
                open.any(|session| target.covers_session(&session.id, session.number))
            }
            _ => false,
        }
    }

    /// What goes when a namespace is reset. Of processes those that have something that is old enough.
    pub(crate) fn reset_target(&self, reset: &Reset) -> Target {
        let is_old = |number: u64| reset.before_revision.is_none_or(|before| number < before);
        let holds = self.holds.iter().filter(|hold| is_old(hold.token)).map(|hold| &hold.who);
        let waits = self.waits.iter().filter(|wait| is_old(wait.id)).map(|wait| &wait.who);
        let old = holds.chain(waits).filter_map(|who| match &who.owner {
            Owner::Process(id) => Some(id.clone()),
            Owner::Session { .. } => None,
        });
        Target::Reset(reset.clone(), old.collect())
    }

    /// What the target covers: holds, waits, sessions.
    pub(crate) fn covered(&self, target: &Target) -> (usize, usize, Vec<String>) {
        let open = self.sessions.iter().filter(|session| session.is_open);
        let gone = open.filter(|session| target.covers_session(&session.id, session.number));
        let mut sessions: Vec<String> = gone.map(|session| session.id.clone()).collect();
        sessions.sort();
        let holds = self.holds.iter().filter(|hold| self.covers_hold(target, hold)).count();
        (holds, self.waits.iter().filter(|wait| self.covers_wait(target, wait)).count(), sessions)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.sweeps.iter().any(|sweep| matches!(sweep.target, Target::Reset(..)))
    }

    /// The report of a session.
    fn report(&self, number: u64) -> Option<&Report> {
        let mut sessions = self.sessions.iter().filter(|session| session.is_open && session.number == number);
        sessions.next()?.report.as_ref()
    }

    pub(crate) fn covers_hold(&self, target: &Target, hold: &Hold) -> bool {
        match target {
            Target::Path(path) => hold.path == *path,
            Target::Owner(_) | Target::Session(_) | Target::Unlisted(_) if hold.is_kept => false,
            Target::Unlisted(number) => {
                target.covers(&hold.who) && self.report(*number).is_some_and(|report| !report.has_hold(hold))
            }
            _ => target.covers(&hold.who),
        }
    }

    pub(crate) fn covers_wait(&self, target: &Target, wait: &Waiting) -> bool {
        let is_listed = match target {
            Target::Unlisted(number) => {
                self.report(*number).is_none_or(|report| report.is_pending(wait.request_id.as_ref()))
            }
            _ => false,
        };
        target.covers(&wait.who) && !is_listed
    }

    /// Whether nothing is granted to a request since it is to leave.
    pub(crate) fn is_swept(&self, wait: &Waiting) -> bool {
        self.swept_with(wait).is_some()
    }

    /// The first of what goes on that it leaves with.
    pub(crate) fn swept_with(&self, wait: &Waiting) -> Option<usize> {
        self.sweeps.iter().position(|sweep| wait.id < sweep.began && self.covers_wait(&sweep.target, wait))
    }

    /// Since when a hold is over in principle, and whether its path is deleted.
    pub(crate) fn swept_since_ms(&self, hold: &Hold) -> Option<(u64, bool)> {
        let is_mark = |target: &Target| matches!(target, Target::Owner(_) | Target::Session(_) | Target::Path(_));
        let mut marks = self.sweeps.iter().filter(|sweep| hold.token < sweep.began && is_mark(&sweep.target));
        let sweep = marks.find(|sweep| self.covers_hold(&sweep.target, hold))?;
        Some((sweep.since_ms, matches!(sweep.target, Target::Path(_))))
    }

    /// Whether a new request has to come again.
    pub(crate) fn conflicts_with_sweep(&self, request: &Acquire, who: &OwnerKey) -> bool {
        let has_sweep = self.sweeps.iter().any(|sweep| match &sweep.target {
            Target::Owner(owner) => owner.owner == request.owner,
            Target::Session(number) => who.number == *number,
            Target::Path(path) => request.claims.iter().any(|claim| claim.path == *path),
            Target::Reset(..) | Target::Unlisted(_) => false,
        });
        has_sweep || self.report(who.number).is_some()
    }

    /// Whether a repeat has to come again: its place in the queue, or what it got, is to go.
    pub(crate) fn is_request_swept(&self, found: &NamedRequest) -> bool {
        match found {
            NamedRequest::Waiting(index) => self.is_swept(&self.waits[*index]),
            NamedRequest::Granted(index) => {
                let granted = &self.granted[*index];
                let is_its = |hold: &&Hold| hold.who == granted.who && granted.live.contains(&hold.path);
                let goes = |hold: &Hold| {
                    self.sweeps.iter().any(|sweep| hold.token < sweep.began && self.covers_hold(&sweep.target, hold))
                };
                self.holds.iter().filter(is_its).any(goes)
            }
        }
    }

    /// Whether an answer has to wait for what a target began; an old message too.
    pub(crate) fn await_sweep(&mut self, target: &Target) -> bool {
        self.awaits = self.sweeps.iter().rev().find(|sweep| sweep.target.is_same(target)).map(|sweep| sweep.began);
        self.awaits.is_some()
    }

    /// First waits in order of the queue, then holds in order of path, then sessions; when something is left of the
    /// slice, all has ended.
    pub(crate) fn sweep(&mut self) {
        let mut sweep = self.sweeps.remove(0);
        if let Target::Reset(reset, _) = &sweep.target
            && !std::mem::replace(&mut sweep.old_processes_known, true)
        {
            sweep.target = self.reset_target(reset);
        }
        while self.ends_left > 0
            && let Some(index) =
                self.waits.iter().position(|wait| wait.id < sweep.began && self.covers_wait(&sweep.target, wait))
        {
            self.ends_left -= 1;
            sweep.ended_waits += 1;
            self.end_wait(index, Reason::Ended);
        }
        self.sweep_holds(&mut sweep);
        let (_, _, sessions) = self.covered(&sweep.target);
        for id in sessions {
            if self.ends_left > 0 && self.session(&id).is_some_and(|session| session.number < sweep.began) {
                self.ends_left -= 1;
                self.end_session(&id, SessionEnd::Reset);
            }
        }
        if self.ends_left > 0 {
            let (ended_holds, ended_waits) = (sweep.ended_holds, sweep.ended_waits);
            self.has_pending_grants &= !matches!(sweep.target, Target::Reset(..));
            self.finished.push((sweep.began, JobState::Done { ended_holds, ended_waits }));
            if let Target::Unlisted(number) = sweep.target
                && let Some(session) = self.sessions.iter_mut().find(|session| session.number == number)
            {
                session.report = None;
            }
        } else {
            self.sweeps.insert(0, sweep);
        }
    }

    fn sweep_holds(&mut self, sweep: &mut Sweep) {
        let has_few = match &sweep.target {
            Target::Unlisted(number) => {
                let holds = self.holds.iter().filter(|hold| hold.who.number == *number).count();
                self.sessions.iter().any(|session| session.is_open && session.number == *number)
                    && holds <= self.bounds.ends_per_slice.saturating_mul(2)
            }
            // Whether these go does not change.
            _ => true,
        };
        let is_next = |hold: &&Hold| match &sweep.after {
            Some((path, true)) if !has_few => hold.path > *path,
            Some((path, false)) if !has_few => hold.path >= *path,
            _ => true,
        };
        let goes = |hold: &&Hold| hold.token < sweep.began && self.covers_hold(&sweep.target, hold);
        let mut holds: Vec<Hold> = self.holds.iter().filter(goes).filter(is_next).cloned().collect();
        match sweep.target {
            // In order of arrival.
            Target::Path(_) => holds.sort_by_key(|hold| hold.token),
            _ => holds.sort_by_key(|hold| (hold.path.clone(), hold.token)),
        }
        let next = holds.get(self.ends_left).map(|hold| hold.path.clone());
        holds.truncate(self.ends_left);
        self.ends_left -= holds.len();
        sweep.ended_holds += holds.len() as u64;
        if let Some(last) = holds.last().filter(|_| self.ends_left == 0 && !has_few) {
            sweep.after = Some((last.path.clone(), next.as_ref() != Some(&last.path)));
        }
        let kind = match sweep.target {
            Target::Path(_) => EventKind::Deleted,
            Target::Reset(..) => EventKind::Reset,
            _ => EventKind::Released,
        };
        for gone in holds {
            let index = self.holds.iter().position(|hold| hold.who == gone.who && hold.path == gone.path);
            self.end_hold(index.expect("it is there"), kind);
        }
    }
}
