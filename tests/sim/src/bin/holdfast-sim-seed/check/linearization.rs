//! Where in the log answers are right.

use std::collections::BTreeMap;

use holdfast_core::SessionEnd;

use super::{locks_replay, namespaces_replay};
use crate::history::{Call, CallReturn};
use crate::world::World;

pub(super) type LocksReplays = BTreeMap<String, locks_replay::LocksReplay>;
pub(super) type NamespacesReplays = BTreeMap<String, namespaces_replay::NamespacesReplay>;
/// How many entries of each shard whatever is answered from now on must have seen.
pub(super) type LowerBounds = BTreeMap<String, usize>;
/// From where to where an answer may be right: numbers of entries.
pub(super) type Window = std::ops::RangeInclusive<usize>;

/// Where an answer is right.
pub(super) enum LinearizationPoint {
    /// After so many entries of that shard at the earliest.
    At(Vec<(String, usize)>),
    /// There is nothing to place.
    Unordered,
}

/// What calls are checked against.
pub(super) struct CheckContext<'a> {
    pub(super) world: &'a World,
    pub(super) locks: &'a LocksReplays,
    pub(super) names: &'a NamespacesReplays,
    /// As they were when a call was made that has not ended yet.
    pub(super) at_invocation: BTreeMap<usize, LowerBounds>,
}

impl CheckContext<'_> {
    pub(super) fn window(&self, shard: &str, call: &Call, returned: &CallReturn) -> Window {
        let floors = self.at_invocation.get(&call.id);
        let from = floors.and_then(|floors| floors.get(shard)).copied().unwrap_or(0);
        from..=returned.applied.get(shard).copied().unwrap_or(0)
    }

    pub(super) fn locks_shard(&self, call: &Call) -> (String, &locks_replay::LocksReplay) {
        let shard = self.world.locks_shard(call.account, &call.namespace).to_owned();
        let replayed = &self.locks[&shard];
        (shard, replayed)
    }

    pub(super) fn names_shard(&self, call: &Call) -> (String, &namespaces_replay::NamespacesReplay) {
        let shard = self.world.namespaces_shard(call.account).to_owned();
        let replayed = &self.names[&shard];
        (shard, replayed)
    }

    /// A place in the window at which the session is there, or is not.
    pub(super) fn check_session(
        &self,
        call: &Call,
        returned: &CallReturn,
        session: &str,
        is_there: bool,
    ) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.locks_shard(call);
        let mut window = self.window(&shard, call, returned);
        let life = replayed.sessions.get(session);
        let lives = |place: usize| {
            life.is_some_and(|life| life.opened < place && life.ended.is_none_or(|ended| ended.entry >= place))
        };
        match window.clone().find(|place| lives(*place) == is_there) {
            Some(place) => Ok(LinearizationPoint::At(vec![(shard, place)])),
            None => {
                let (from, until) = (window.next(), window.last());
                Err(format!(
                    "its answer is right nowhere from {from:?} to {until:?} of {shard}: the session was {life:?}"
                ))
            }
        }
    }

    /// The place after the entry that ended a session.
    pub(super) fn check_session_end(
        &self,
        call: &Call,
        returned: &CallReturn,
        session: &str,
    ) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.locks_shard(call);
        let ended = replayed.sessions.get(session).and_then(|life| life.ended);
        let place = ended.filter(|ended| ended.reason != SessionEnd::NamespaceDeleted).map(|ended| ended.entry + 1);
        match place.filter(|place| place <= self.window(&shard, call, returned).end()) {
            Some(place) => Ok(LinearizationPoint::At(vec![(shard, place)])),
            None => Err(format!("the answer says that the session is closed, but {shard} does not know that")),
        }
    }
}
