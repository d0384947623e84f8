//! A waiting request and its blocker.

use std::sync::Arc;

use holdfast_primitives::attempts::Attempts;

use super::conditions::CameFrom;
use super::hold::HoldTerms;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::NodeId;
use crate::{Claim, Mode};

/// The claims of a request, in order of node number. Requests with equal claims share it.
pub(super) type ClaimSet = Arc<[(NodeId, Mode)]>;

/// The end of a waiting request costs a slice one end for as many claims.
const CLAIMS_PER_END: usize = 3;

/// A request in the queue.
#[derive(Clone, Debug)]
pub(super) struct WaitingRequest {
    pub(super) owner: OwnerId,
    /// The claims, each path once, in the order of the request.
    pub(super) claims: Vec<Claim>,
    /// The node of each claim in the tree.
    pub(super) nodes: Vec<NodeId>,
    pub(super) claim_set: ClaimSet,
    pub(super) terms: HoldTerms,
    pub(super) request_id: Option<Box<str>>,
    /// The calls that wait for it.
    pub(super) attempts: Attempts,
    /// The shard clock at which it times out.
    pub(super) ends_at_ms: Option<u64>,
    /// The leader's wall clock when it began to wait.
    pub(super) since_ms: u64,
    pub(super) blocked_on: BlockedOn,
    /// The hold that was given up to await a condition, if it waits for its lock again.
    pub(super) came_from: Option<Box<CameFrom>>,
}

impl WaitingRequest {
    /// Returns the units that it counts when it joins the queue, and again when it leaves it: the request, its owner,
    /// and each of its claims, in the queues of its path and of those above.
    pub(super) fn units(&self) -> usize {
        2 + 2 * self.claims.len()
    }

    /// Returns how many ends of a slice its end costs.
    pub(super) fn ends(&self) -> usize {
        self.claims.len().div_ceil(CLAIMS_PER_END).max(1)
    }
}

impl Namespace {
    /// Returns whether its time limit has passed, though the entry that ends it may come later.
    pub(super) fn has_timed_out(&self, position: QueuePosition) -> bool {
        self.waiting(position).ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms <= self.now_ms.get())
    }
}

/// Returns the claim set of a request.
pub(super) fn claim_set_of(claims: impl Iterator<Item = (NodeId, Mode)>) -> ClaimSet {
    let mut claims: Vec<(NodeId, Mode)> = claims.collect();
    claims.sort_unstable();
    claims.into()
}

/// One reason why a request waits. As long as it lasts and the wait-for graph does not change, the request can't be
/// granted, so it is not evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockedOn {
    /// None yet: the request must be evaluated.
    Unknown,
    /// The hold of that owner.
    Hold(NodeId, OwnerId),
    /// The holds below that path that exclude a claim of that mode. The request is scheduled when none are left but its
    /// owner's own.
    Subtree(NodeId, Mode),
    /// A request that must go first: an earlier one that it must not overtake, or a later one whose owner its owner
    /// already waits for.
    Request(QueuePosition),
}
