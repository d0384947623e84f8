//! Granting those who wait, as soon as they can be.

use super::effects::Settled;
use super::end::Call;
use super::queue::Place;
use super::waiting::{Waiting, Watch};
use super::work::Work;
use crate::Reason;

impl Work<'_> {
    /// Grants whoever can be granted, always the first in the queue, until nobody can, or until the slice is used up. Who
    /// is left is granted by the next entry in the same order, and until then nobody else who waits is.
    ///
    /// Every waiting request watches one thing that keeps it waiting, so only those whose thing went are looked at:
    /// that is the next in the queue, not all of it.
    pub(super) fn run(&mut self) {
        let mut grants = if self.ns.behind { 0 } else { self.budget.grants };
        let may_grant = grants;
        loop {
            self.ns.refresh();
            let Some(place) = self.ns.woken.first().copied() else { break };
            self.ns.examined += 1;
            self.ns.spend(1);
            match self.ns.look_again(place) {
                Some(watch) => {
                    self.ns.woken.remove(&place);
                    self.ns.set_watch(place, watch);
                    continue;
                }
                None if grants == 0 => break,
                None if self.ns.ending_of(self.ns.waiting(place).owner).is_some() => {
                    self.end_wait(place, Reason::Ended);
                }
                None if self.ns.has_timed_out(place) => self.end_wait(place, Reason::TimedOut),
                None => self.grant_waiting(place),
            }
            grants -= 1;
        }
        self.budget.grants -= may_grant - grants;
        self.ns.behind = !self.ns.woken.is_empty();
        self.note_busy();
    }

    fn grant_waiting(&mut self, place: Place) {
        let waiting = self.leave_queue(place);
        let call =
            Call { attempts: &waiting.attempts, left: &[], request_id: waiting.request_id.as_deref(), has_room: true };
        let token = self.grant(waiting.owner, &waiting.claims, &waiting.terms, call);
        let owner = self.ns.owners.name(waiting.owner).to_owner();
        let settled = Settled {
            wait: place.wait(),
            attempt: waiting.attempts.highest(),
            owner,
            request_id: waiting.request_id,
            claims: waiting.claims,
            outcome: Ok(token),
        };
        self.notes.settled(&self.ns.id, settled);
    }

    /// Ends a wait without a grant. Its owner is forgotten with its last wait or hold.
    pub(super) fn end_wait(&mut self, place: Place, reason: Reason) {
        let waiting = self.leave_queue(place);
        let settled = Settled {
            wait: place.wait(),
            attempt: waiting.attempts.highest(),
            owner: self.ns.owners.name(waiting.owner).to_owner(),
            request_id: waiting.request_id,
            claims: waiting.claims,
            outcome: Err(reason),
        };
        self.notes.settled(&self.ns.id, settled);
        self.ns.forget_idle(waiting.owner);
    }

    fn leave_queue(&mut self, place: Place) -> Waiting {
        let waiting = self.ns.remove_waiting(place);
        self.drop_wait_end(place, waiting.ends_at_ms);
        self.ns.wake(Watch::Wait(place));
        waiting
    }
}
