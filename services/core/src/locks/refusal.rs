//! Explains why a request is not granted, and which owners block it.

use std::collections::BTreeSet;

use super::evaluate::{ClaimKind, Evaluation};
use super::namespace::Namespace;
use super::queue::QueuePosition;
use super::wait_graph::Dependents;
use crate::{Blocker, Reason, Refused};

impl Namespace {
    /// Builds the refusal of a request whose claim with that index fails.
    pub(super) fn refusal(
        &self,
        asked: &Evaluation<'_>,
        waiters: &mut Dependents,
        index: usize,
        reason: Reason,
    ) -> Refused {
        let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
        let blockers = match reason {
            Reason::NotHeld => Vec::new(),
            Reason::Upgrade if self.claim_kind(asked, index) == ClaimKind::Changes => {
                let other = self.conflicting_upgrade(asked, index);
                other.and_then(|position| self.waiting_blocker(position, claim)).into_iter().collect()
            }
            Reason::Upgrade => {
                let own = spot.node().and_then(|node| Some(self.holder_view(node, self.hold(node, asked.owner)?)));
                let path = claim.path.clone();
                own.map(|holder| Blocker { path, waiting: false, holder }).into_iter().collect()
            }
            Reason::Queued => {
                let positions = self.blocking_requests(asked, waiters, index);
                positions.into_iter().filter_map(|position| self.waiting_blocker(position, claim)).collect()
            }
            _ => {
                let holds = self.blocking_holds(asked.owner, claim.mode, spot, self.bounds.max_blockers_in_reply);
                let blocker = |(node, hold)| Blocker {
                    path: self.tree.path_of(node),
                    waiting: false,
                    holder: self.holder_view(node, hold),
                };
                holds.into_iter().map(blocker).collect()
            }
        };
        Refused { reason, blockers, queue_position: None, cycle: Vec::new() }
    }

    /// Returns the waiting requests that block a claim, in queue order: earlier requests that it must not overtake or,
    /// if there are none, a later request that must go first.
    fn blocking_requests(&self, asked: &Evaluation<'_>, waiters: &mut Dependents, index: usize) -> Vec<QueuePosition> {
        let max = self.bounds.max_blockers_in_reply;
        let found = match self.claim_kind(asked, index) {
            ClaimKind::Changes => BTreeSet::new(),
            _ => self.first_blocking_requests(asked, waiters, index, max),
        };
        if found.is_empty() {
            return self.must_yield(asked, waiters).map(|(_, position)| position).into_iter().collect();
        }
        found.into_iter().collect()
    }

    /// Returns how many requests with a claim on the path of the failing claim precede the request.
    pub(super) fn queue_position(&self, asked: &Evaluation<'_>, index: usize) -> u64 {
        let queue = asked.lookups[index].node().and_then(|node| self.tree.queue(node));
        let Some(queue) = queue else { return 0 };
        let max = self.bounds.max_queue_position as usize;
        let before = |line: &super::queue::ClaimQueue| match asked.position {
            QueuePosition::LAST => line.len(),
            position => line.count_before(position, max),
        };
        (before(&queue.own.reads) + before(&queue.own.writes)).min(max) as u64
    }
}
