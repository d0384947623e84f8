//! Callers that went away.

use super::acquire::distinct_claims;
use super::attempts::DetachResult;
use super::end::EndCause;
use super::sessions::NamedRequest;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{Cancel, Reason, Response};

impl NamespaceTxn<'_> {
    /// Callers went away: `left` are attempts that did before this one. With the last whose caller counts on it the place
    /// is given up, or what was granted; not when it is known to have been heard of.
    pub(super) fn cancel(&mut self, cancel: &Cancel, left: &[u64]) -> Response {
        let claims = distinct_claims(&cancel.claims);
        let named = self.ns.named_request(&cancel.owner, cancel.request_id.as_deref(), &claims);
        let (mut left_queue, mut grant_released) = (false, false);
        let rules = self.rules;
        match named {
            Ok(Some(NamedRequest::Waiting(place))) => {
                if self.ns.waiting_mut(place).attempts.detach(cancel.attempt, left, rules) {
                    self.end_wait(place, Reason::Ended);
                    left_queue = true;
                }
            }
            Ok(Some(NamedRequest::Granted(granted))) => {
                let attempts = &mut self.ns.granted_requests.get_mut(granted).attempts;
                if !attempts.is_permanent() && attempts.detach(cancel.attempt, left, rules) {
                    self.release_granted(granted);
                    grant_released = true;
                }
            }
            Ok(None) => {
                let mut nodes: Vec<_> = claims.iter().filter_map(|claim| self.ns.tree.find(&claim.path)).collect();
                self.sort_by_path(&mut nodes);
                for node in nodes {
                    grant_released |= self.rollback_hold(cancel, left, node);
                }
            }
            // The id is another request's by now.
            Err(_) => {}
        }
        self.run_grant_loop();
        Response::Cancelled { left_queue, grant_released }
    }

    /// A hold that nobody counts on any more ends; one that those who left only made a writer's is a reader's again.
    fn rollback_hold(&mut self, cancel: &Cancel, left: &[u64], node: NodeId) -> bool {
        let (owner, rules) = (self.ns.owner_id(&cancel.owner), self.rules);
        if self.ns.hold(node, owner).is_none() {
            return false;
        }
        let mut still = DetachResult::InUse;
        self.change_hold(node, owner, |hold| still = hold.detach(cancel.attempt, left, rules));
        match still {
            DetachResult::InUse => false,
            DetachResult::Downgraded => {
                self.downgrade(node, owner);
                self.end_contradicted_waits(owner, &[node]);
                true
            }
            DetachResult::Unused => {
                self.end_hold(node, owner, EndCause::Released);
                true
            }
        }
    }
}
