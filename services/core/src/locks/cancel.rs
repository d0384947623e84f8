//! Cancels requests whose callers left.

use super::acquire::distinct_claims;
use super::attempts::DetachResult;
use super::end::EndCause;
use super::sessions::NamedRequest;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{Cancel, Reason, Response};

impl NamespaceTxn<'_> {
    /// Removes the attempts of callers that left; `left` lists attempts abandoned before this one. When no attempt
    /// remains, the queued request or the grant is rolled back, unless the owner is known to have received the grant.
    pub(super) fn cancel(&mut self, cancel: &Cancel, left: &[u64]) -> Response {
        let claims = distinct_claims(&cancel.claims);
        let named = self.ns.named_request(&cancel.owner, cancel.request_id.as_deref(), &claims);
        let (mut left_queue, mut grant_released) = (false, false);
        let rules = self.rules;
        match named {
            Ok(Some(NamedRequest::Waiting(position))) => {
                if self.ns.waiting_mut(position).attempts.detach(cancel.attempt, left, rules) {
                    self.end_wait(position, Reason::Ended);
                    left_queue = true;
                }
            }
            Ok(Some(NamedRequest::Granted(granted))) => {
                let attempts = &mut self.ns.granted_requests.get_mut(granted).attempts;
                if !attempts.is_permanent() && attempts.detach(cancel.attempt, left, rules) {
                    self.owe_unheard_of(granted);
                    self.release_granted(granted);
                    grant_released = true;
                }
            }
            Ok(Some(NamedRequest::Awaiting(_))) => {}
            Ok(None) => {
                let mut nodes: Vec<_> = claims.iter().filter_map(|claim| self.ns.tree.find(&claim.path)).collect();
                self.sort_by_path(&mut nodes);
                for node in nodes {
                    grant_released |= self.rollback_hold(cancel, left, node);
                }
            }
            // The id belongs to another request by now.
            Err(_) => {}
        }
        self.run_grant_loop();
        Response::Cancelled { left_queue, grant_released }
    }

    /// Hands on the signals of the holds that end with a request, before it is released.
    pub(super) fn owe_unheard_of(&mut self, granted: u32) {
        let request = self.ns.granted_requests.get(granted);
        let owner = request.owner;
        let ends =
            |node: &NodeId| self.ns.hold(*node, owner).is_some_and(|hold| !hold.direct && hold.requests() == [granted]);
        let nodes: Vec<NodeId> = request.live.nodes().filter(ends).collect();
        nodes.into_iter().for_each(|node| self.owe_unheard(node, owner));
    }

    /// Ends a hold that no attempt relies on any more. If the remaining attempts rely on a READ hold, downgrades it
    /// instead.
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
                self.owe_unheard(node, owner);
                self.end_hold(node, owner, EndCause::Released);
                true
            }
        }
    }
}
