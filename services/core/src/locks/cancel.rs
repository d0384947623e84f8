//! Callers that went away.

use super::acquire::distinct;
use super::attempts::LeaveResult;
use super::end::EndCause;
use super::sessions::NamedRequest;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{Answer, Cancel, Reason};

impl NamespaceTxn<'_> {
    /// Callers went away: `left` are attempts that did before this one. With the last whose caller counts on it the place
    /// is given up, or what was granted; not when it is known to have been heard of.
    pub(super) fn cancel(&mut self, cancel: &Cancel, left: &[u64]) -> Answer {
        let claims = distinct(&cancel.claims);
        let named = self.ns.named(&cancel.owner, cancel.request_id.as_deref(), &claims);
        let (mut left_queue, mut given_back) = (false, false);
        let rules = self.rules;
        match named {
            Ok(Some(NamedRequest::Waiting(place))) => {
                if self.ns.waiting_mut(place).attempts.leave(cancel.attempt, left, rules) {
                    self.end_wait(place, Reason::Ended);
                    left_queue = true;
                }
            }
            Ok(Some(NamedRequest::Granted(granted))) => {
                let attempts = &mut self.ns.granted.get_mut(granted).attempts;
                if !attempts.stays() && attempts.leave(cancel.attempt, left, rules) {
                    self.release_granted(granted);
                    given_back = true;
                }
            }
            Ok(None) => {
                let mut nodes: Vec<_> = claims.iter().filter_map(|claim| self.ns.tree.find(&claim.path)).collect();
                self.sort_by_path(&mut nodes);
                for node in nodes {
                    given_back |= self.give_back(cancel, left, node);
                }
            }
            // The id is another request's by now.
            Err(_) => {}
        }
        self.run();
        Answer::Cancelled { left_queue, given_back }
    }

    /// A hold that nobody counts on any more ends; one that those who left only made a writer's is a reader's again.
    fn give_back(&mut self, cancel: &Cancel, left: &[u64], node: NodeId) -> bool {
        let (owner, rules) = (self.ns.owner_id(&cancel.owner), self.rules);
        if self.ns.hold(node, owner).is_none() {
            return false;
        }
        let mut still = LeaveResult::Somebody;
        self.change_hold(node, owner, |hold| still = hold.leave(cancel.attempt, left, rules));
        match still {
            LeaveResult::Somebody => false,
            LeaveResult::Readers => {
                self.weaken(node, owner);
                self.end_contradicted(owner, &[node]);
                true
            }
            LeaveResult::Nobody => {
                self.end_hold(node, owner, EndCause::Released);
                true
            }
        }
    }
}
