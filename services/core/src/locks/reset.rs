//! Ending what everybody has who is not said to be alive.

use std::sync::Arc;

use super::end::EndCause;
use super::owner::OwnerId;
use super::target::Target;
use super::txn::NamespaceTxn;
use crate::{Answer, Refusal, Reset, Revision, SessionEnd};

impl NamespaceTxn<'_> {
    /// First every wait of those that go, then every hold, then their sessions; only then are others granted, so that
    /// nobody moves up who is about to go. When that is more than a slice, the answer has the numbers once it is done.
    pub(super) fn reset(&mut self, reset: &Reset) -> Result<Answer, Refusal> {
        let target = Target::dead(reset);
        let things = self.ns.holds.saturating_add((self.ns.waits.len() + self.ns.sessions.len()) as u64);
        let is_small = !self.ns.is_frozen() && things <= self.budget.looks as u64;
        match is_small.then(|| self.reset_at_once(&target, reset.before_revision)).flatten() {
            Some(answer) => Ok(answer),
            None => {
                self.begin_sweep(target)?;
                Ok(Answer::Reset { removed_holds: 0, removed_waiters: 0 })
            }
        }
    }

    /// Nothing when it is more than is left of the slice.
    fn reset_at_once(&mut self, target: &Target, before: Option<Revision>) -> Option<Answer> {
        let goes = |owner: &OwnerId| {
            let name = self.ns.owners.name(*owner);
            let is_old = || before.is_none_or(|before| name.session().is_some() || self.born(*owner) < before);
            target.covers(name) && is_old()
        };
        let owners: Vec<OwnerId> = self.ns.owners.iter().map(|(id, _)| id).filter(goes).collect();
        let sessions = self.ns.sessions.iter();
        let sessions = sessions.filter(|(id, session)| target.covers_session(id, session.facts.number));
        let sessions: Vec<Arc<str>> = sessions.map(|(id, _)| Arc::clone(id)).collect();
        let records = owners.iter().map(|owner| self.ns.owners.get(*owner));
        let things: usize = records.map(|record| record.holds.len() + record.waits()).sum();
        self.budget.ends = self.budget.ends.checked_sub(things + sessions.len())?;
        let removed_waiters = self.end_waits(&owners);
        let holds = self.holds_of(&owners);
        for (_, node, owner) in &holds {
            self.end_hold(*node, *owner, EndCause::Reset);
        }
        for session_id in sessions {
            self.forget_session(&session_id, SessionEnd::Reset);
        }
        self.run();
        Some(Answer::Reset { removed_holds: holds.len() as u64, removed_waiters })
    }

    /// A process is as old as the oldest of what it holds and awaits.
    fn born(&self, owner: OwnerId) -> Revision {
        let record = self.ns.owners.get(owner);
        let holds = record.holds.iter().filter_map(|node| Some(self.ns.hold(node, owner)?.token));
        let waits = record.places().map(|place| place.wait().0);
        holds.chain(waits).min().unwrap_or(self.state.revision)
    }
}
