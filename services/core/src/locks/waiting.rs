//! A request that waits, and what it watches.

use std::sync::Arc;

use super::attempts::Attempts;
use super::hold::HoldTerms;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::NodeId;
use crate::{Claim, Mode};

/// What a request claims, in order of the number of the path. Requests of one kind share it.
pub(super) type ClaimSet = Arc<[(NodeId, Mode)]>;

/// A request in the queue.
#[derive(Clone, Debug)]
pub(super) struct WaitingRequest {
    pub(super) owner: OwnerId,
    /// Each path once, in the order of the request.
    pub(super) claims: Vec<Claim>,
    /// The path of each claim in the tree.
    pub(super) nodes: Vec<NodeId>,
    pub(super) claim_set: ClaimSet,
    pub(super) terms: HoldTerms,
    pub(super) request_id: Option<Box<str>>,
    /// The calls that wait there.
    pub(super) attempts: Attempts,
    /// Shard clock at which it is given up.
    pub(super) ends_at_ms: Option<u64>,
    /// The leader's wall clock when it began to wait.
    pub(super) since_ms: u64,
    pub(super) blocked_on: BlockedOn,
}

impl Namespace {
    /// Whether its time is over, though its end comes later.
    pub(super) fn has_timed_out(&self, place: QueuePosition) -> bool {
        self.waiting(place).ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms <= self.now_ms.get())
    }
}

/// What requests with these claims have in common.
pub(super) fn claim_set_of(claims: impl Iterator<Item = (NodeId, Mode)>) -> ClaimSet {
    let mut claims: Vec<(NodeId, Mode)> = claims.collect();
    claims.sort_unstable();
    claims.into()
}

/// One thing that keeps a request waiting. While it lasts, and nothing changes who waits for whom, the request can't be
/// granted, so nobody looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockedOn {
    /// Nothing yet: it has to be looked at.
    Unknown,
    /// That owner's hold.
    Hold(NodeId, OwnerId),
    /// The holds under that path that exclude a claim of that mode: it is woken when none is left, or only the own ones.
    Subtree(NodeId, Mode),
    /// A request that has to go first: one before it that it may not overtake, or one behind it, of an owner that its own
    /// waits for already.
    Request(QueuePosition),
}
