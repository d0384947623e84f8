//! Resets a namespace: ends everything of owners that are not in the list of live ones.

use std::sync::Arc;

use super::bit_set::BitSet;
use super::end::EndCause;
use super::owner::{OwnerId, OwnerName};
use super::target::Target;
use super::txn::NamespaceTxn;
use crate::{CommandError, Reset, Response, Revision, SessionEnd};

impl NamespaceTxn<'_> {
    /// Ends all waits of the affected owners, then their holds, then their sessions. Grants follow only then, so that
    /// no affected waiter is granted. If this exceeds a slice, the response has the counts once the sweep is finished.
    pub(super) fn reset(&mut self, reset: &Reset) -> Result<Response, CommandError> {
        let target = Target::reset(reset);
        let others = (self.ns.waits.len() + self.ns.conditions.len() + self.ns.sessions.len()) as u64;
        let things = self.ns.hold_count.saturating_add(others).saturating_add(self.ns.permits.things());
        let things = things.saturating_add(self.ns.barriers.arrivals());
        let is_small = !self.ns.is_frozen() && things <= self.budget.visits as u64;
        let answer = match is_small.then(|| self.try_reset(&target, reset.before_revision)).flatten() {
            Some(answer) => answer,
            None => {
                self.begin_sweep(target)?;
                Response::Reset { removed_holds: 0, removed_waiters: 0 }
            }
        };
        self.reset_table_sessions(reset);
        Ok(answer)
    }

    /// Resets in one step. Returns `None` if that exceeds the slice.
    fn try_reset(&mut self, target: &Target, before: Option<Revision>) -> Option<Response> {
        let goes = |owner: &OwnerId| {
            let name = self.ns.owners.name(*owner);
            let is_old =
                || before.is_none_or(|before| name.session().is_some() || self.oldest_revision(*owner) < before);
            target.covers(name) && is_old()
        };
        let owners: Vec<OwnerId> = self.ns.owners.iter().map(|(id, _)| id).filter(goes).collect();
        let sessions = self.ns.sessions.iter();
        let sessions = sessions.filter(|(id, session)| target.covers_session(id, session.facts.number));
        let sessions: Vec<Arc<str>> = sessions.map(|(id, _)| Arc::clone(id)).collect();
        let mut old = BitSet::default();
        owners.iter().for_each(|owner| _ = old.insert(owner.0 as usize));
        let records = owners.iter().map(|owner| self.ns.owners.get(*owner));
        let things: usize = records.map(|record| record.holds.len() + record.request_count()).sum();
        let others = self.ends_of_all(things, &owners) + sessions.len();
        let (permits, arrivals) = (self.count_permits(target, &old), self.count_arrivals(target, &old));
        if others.saturating_add(permits).saturating_add(arrivals) > self.budget.ends {
            return None;
        }
        // Those of permits and arrivals are counted one by one. They come first, because a process may be old by its
        // locks.
        let (arrivals, permits) = (self.end_all_arrivals(target, &old), self.end_all_permits(target, &old));
        self.budget.ends = self.budget.ends.saturating_sub(others);
        let removed_waiters = self.end_waits(&owners) + permits.waits + arrivals.waits;
        let holds = self.holds_of(&owners);
        for (_, node, owner) in &holds {
            self.end_hold(*node, *owner, EndCause::Reset);
        }
        for session_id in sessions {
            self.remove_session(&session_id, SessionEnd::Reset);
        }
        self.run_grant_loop();
        let removed_holds = holds.len() as u64 + permits.holds + arrivals.holds;
        Some(Response::Reset { removed_holds, removed_waiters })
    }

    /// A process is as old as its oldest hold or wait.
    pub(super) fn oldest_revision(&self, owner: OwnerId) -> Revision {
        let record = self.ns.owners.get(owner);
        let holds = record.holds.iter().filter_map(|node| Some(self.ns.hold(node, owner)?.token));
        let waits = record.queue_positions().map(|position| position.wait().0);
        let awaits = record.await_ids().map(|wait| wait.0);
        let permits = match self.ns.owners.name(owner) {
            OwnerName::Process(process_id) => self.ns.oldest_elsewhere(process_id.as_str()),
            OwnerName::Session(_) => None,
        };
        holds.chain(waits).chain(awaits).chain(permits).min().unwrap_or(self.common.revision)
    }
}
