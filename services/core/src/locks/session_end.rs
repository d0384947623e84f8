//! How sessions end: closed, expired, removed by a reset.

use std::collections::BTreeSet;

use super::LocksCore;
use super::end::Ending;
use super::owner::OwnerId;
use super::work::Work;
use crate::{Answer, Context, EventKind, MessageStamp, Refusal, Revision, SessionEnd, SessionNumber};

impl LocksCore {
    /// Ends those of the sessions that were not opened or resumed since the leader looked.
    pub(super) fn expire_sessions(&mut self, context: &Context, ids: &[SessionNumber], seen: Revision) -> Answer {
        let mut ended = Vec::new();
        let (mut slots, mut order) = (BTreeSet::new(), Vec::new());
        for number in ids {
            let Some((slot, session_id)) = self.sessions.get(number).cloned() else { continue };
            let mut work = self.work_in(slot, context);
            if work.ns.sessions[&session_id].facts.epoch > seen {
                continue;
            }
            work.end_session(&session_id, SessionEnd::Expired);
            ended.push(*number);
            // Nobody moves up before all are gone, since those who wait may be among them.
            if slots.insert(slot) {
                order.push(slot);
            }
        }
        for slot in order {
            self.work_in(slot, context).run();
        }
        Answer::SessionsExpired { ended }
    }
}

impl Work<'_> {
    pub(super) fn close_session(&mut self, session_id: &str, message: Option<MessageStamp>) -> Result<Answer, Refusal> {
        if !self.admit(session_id, message)? {
            return Ok(Answer::Ignored);
        }
        self.end_session(session_id, SessionEnd::Closed);
        self.run();
        Ok(Answer::Done)
    }

    /// Ends all that a session has, and the session. Holds with a transition go into it when the session expired.
    fn end_session(&mut self, session_id: &str, why: SessionEnd) {
        let owners: Vec<OwnerId> = self.ns.sessions[session_id].owners.iter().copied().collect();
        self.end_waits(&owners);
        for (_, node, owner) in self.holds_of(&owners) {
            if why != SessionEnd::Expired {
                self.end_hold(node, owner, Ending::Released);
                continue;
            }
            let has_transition = self.ns.hold(node, owner).is_some_and(|hold| hold.transition_ms > 0);
            if has_transition {
                self.drop_requests(node, owner);
            }
            self.end_phase(node, owner, self.state.clock_ms);
        }
        self.forget_session(session_id, why);
    }

    /// A hold outlives the requests that claimed it.
    fn drop_requests(&mut self, node: super::tree::NodeId, owner: OwnerId) {
        let requests = self.ns.hold(node, owner).map(|hold| hold.requests().to_vec()).unwrap_or_default();
        for request in requests {
            self.change_hold(node, owner, |hold| {
                hold.unclaim(request);
            });
            self.forget_claim(request, node);
        }
    }

    /// Takes a session out that has nothing left but holds in transition.
    pub(super) fn forget_session(&mut self, session_id: &str, why: SessionEnd) {
        let Some((session_id, session)) = self.ns.sessions.remove_entry(session_id) else { return };
        let facts = &session.facts;
        self.sessions.remove(&facts.number);
        self.tell_of_session(EventKind::SessionEnded, &session_id, &facts.process_id);
        self.notes.ended(&self.ns.id, &session_id, facts.number, why);
    }
}
