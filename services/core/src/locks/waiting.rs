//! A request that waits, and what it watches.

use super::attempts::Attempts;
use super::hold::Terms;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::Place;
use super::tree::NodeId;
use crate::{Claim, Mode};

/// A request in the queue.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) owner: OwnerId,
    /// Each path once, in the order of the request.
    pub(super) claims: Vec<Claim>,
    /// The path of each claim in the tree.
    pub(super) nodes: Vec<NodeId>,
    pub(super) terms: Terms,
    pub(super) request_id: Option<Box<str>>,
    /// The calls that wait there.
    pub(super) attempts: Attempts,
    /// Shard clock at which it is given up.
    pub(super) ends_at_ms: Option<u64>,
    /// The leader's wall clock when it began to wait.
    pub(super) since_ms: u64,
    pub(super) watch: Watch,
}

impl Namespace {
    /// Whether its time is over, though its end comes later.
    pub(super) fn has_timed_out(&self, place: Place) -> bool {
        self.waiting(place).ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms <= self.now_ms.get())
    }
}

impl Waiting {
    /// Whether two requests of different owners could not both be granted.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        let conflict = |one: &Claim, other: &Claim| {
            (one.mode == Mode::Write || other.mode == Mode::Write)
                && (one.path.is_prefix_of(&other.path) || other.path.is_prefix_of(&one.path))
        };
        self.claims.iter().any(|one| other.claims.iter().any(|other| conflict(one, other)))
    }
}

/// One thing that keeps a request waiting. While it lasts, and nothing changes who waits for whom, the request can't be
/// granted, so nobody looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watch {
    /// Nothing yet: it has to be looked at.
    Unknown,
    /// That owner's hold.
    Hold(NodeId, OwnerId),
    /// Some hold under that path: there are too many in between to say which.
    Below(NodeId),
    /// A request before it.
    Wait(Place),
    /// A request behind it, of an owner that its own waits for already: whatever ends may free it.
    Yields,
}
