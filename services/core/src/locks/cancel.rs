//! Callers that went away.

use super::acquire::distinct;
use super::end::Ending;
use super::sessions::Named;
use super::tree::NodeId;
use super::work::Work;
use crate::{Answer, Cancel, Reason};

impl Work<'_> {
    /// Gives the caller's place up, or what it was granted, unless somebody else attached since or it is known to have
    /// heard of the grant.
    pub(super) fn cancel(&mut self, cancel: &Cancel) -> Answer {
        let claims = distinct(&cancel.claims);
        let named = self.named(&cancel.owner, cancel.request_id.as_deref(), &claims);
        let (mut left_queue, mut given_back) = (false, false);
        match named {
            Ok(Some(Named::Waiting(place))) => {
                if self.ns.waiting(place).attempt == cancel.attempt {
                    self.end_wait(place, Reason::Ended);
                    left_queue = true;
                }
            }
            Ok(Some(Named::Granted(granted))) => {
                if cancel.attempt != 0 && self.ns.granted.get(granted).attempt == cancel.attempt {
                    self.release_granted(granted);
                    given_back = true;
                }
            }
            Ok(None) if cancel.attempt != 0 => {
                let mut nodes: Vec<_> = claims.iter().filter_map(|claim| self.ns.tree.find(&claim.path)).collect();
                self.sort_by_path(&mut nodes);
                for node in nodes {
                    given_back |= self.give_back(cancel, node);
                }
            }
            // The id is another request's by now.
            Ok(None) | Err(_) => {}
        }
        self.run();
        Answer::Cancelled { left_queue, given_back }
    }

    /// A hold that was granted to that attempt and not heard of since ends; one that it only made a writer's is a
    /// reader's again.
    fn give_back(&mut self, cancel: &Cancel, node: NodeId) -> bool {
        let owner = self.ns.owner_id(&cancel.owner);
        let Some(hold) = self.ns.hold(node, owner).filter(|hold| hold.attempt == cancel.attempt) else { return false };
        if hold.upgraded {
            self.weaken(node, owner);
            self.end_contradicted(owner, &[node]);
        } else {
            self.end_hold(node, owner, Ending::Released);
        }
        true
    }
}
