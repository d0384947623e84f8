//! Ending what everybody has who is not said to be alive.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::end::Ending;
use super::owner::{OwnerId, OwnerName};
use super::work::Work;
use crate::{Answer, Reset, Revision, SessionEnd};

impl Work<'_> {
    /// First every wait of those that go, then every hold, then their sessions; only then are others granted, so that
    /// nobody moves up who is about to go.
    pub(super) fn reset(&mut self, reset: &Reset) -> Answer {
        let live: BTreeSet<&str> = reset.live_owners.iter().map(String::as_str).collect();
        let is_old = |born: Revision| reset.before_revision.is_none_or(|before| born < before);
        let goes = |owner: OwnerId| {
            let name: &str = match self.ns.owners.name(owner) {
                OwnerName::Process(process_id) => process_id,
                OwnerName::Session(session) => &session.session_id,
            };
            !live.contains(name) && is_old(self.born(owner))
        };
        let owners: Vec<OwnerId> = self.ns.owners.iter().map(|(id, _)| id).filter(|id| goes(*id)).collect();
        let sessions = self.ns.sessions.iter();
        let sessions = sessions.filter(|(id, session)| !live.contains(&***id) && is_old(session.facts.number));
        let sessions: Vec<Arc<str>> = sessions.map(|(id, _)| Arc::clone(id)).collect();
        let removed_waiters = self.end_waits(&owners);
        let holds = self.holds_of(&owners);
        for (_, node, owner) in &holds {
            self.end_hold(*node, *owner, Ending::Reset);
        }
        for session_id in sessions {
            self.forget_session(&session_id, SessionEnd::Reset);
        }
        self.run();
        Answer::Reset { removed_holds: holds.len() as u64, removed_waiters }
    }

    /// A session is as old as its first opening, a process as the oldest of what it holds and awaits.
    fn born(&self, owner: OwnerId) -> Revision {
        if let Some(session) = self.ns.owners.name(owner).session() {
            return session.number;
        }
        let record = self.ns.owners.get(owner);
        let holds = record.holds.iter().filter_map(|node| Some(self.ns.hold(node, owner)?.token));
        let waits = record.places().map(|place| place.wait().0);
        holds.chain(waits).min().unwrap_or(self.state.revision)
    }
}
