//! Where in the log answers are right.

use std::collections::BTreeMap;

use holdfast_core::SessionEnd;

use super::{locks_replay, namespaces_replay};
use crate::history::{Call, CallReturn};
use crate::world::World;

pub(super) type LocksReplays = BTreeMap<String, locks_replay::LocksReplay>;
pub(super) type NamespacesReplays = BTreeMap<String, namespaces_replay::NamespacesReplay>;
/// How many apply slices of each shard whatever is answered from now on must have seen.
pub(super) type LowerBounds = BTreeMap<String, usize>;
/// From where to where an answer may be right: numbers of apply slices, since readers see a shard after each of them.
pub(super) type Window = std::ops::RangeInclusive<usize>;

/// Where an answer is right.
pub(super) enum LinearizationPoint {
    /// After so many apply slices of that shard at the earliest.
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
        from..=self.place_applied(shard, returned)
    }

    /// The place after all that had been applied of a shard when a call was answered.
    pub(super) fn place_applied(&self, shard: &str, returned: &CallReturn) -> usize {
        let applied = returned.applied.get(shard).copied().unwrap_or_default();
        let of_names = || self.names.get(shard).map(|replayed| replayed.ends.as_slice());
        let ends = self.locks.get(shard).map(|replayed| replayed.ends.as_slice()).or_else(of_names).unwrap_or_default();
        let last = ends.last().copied().unwrap_or(0);
        let slices = applied.commands.div_ceil(self.world.plan.slice_commands);
        // The last entry of a run may have been begun only.
        ends.get(applied.entries).map_or(last, |whole| (whole + slices).min(last))
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
            life.is_some_and(|life| life.opened < place && life.ended.is_none_or(|ended| ended.slice >= place))
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

    /// The place after the slice that ended a session.
    pub(super) fn check_session_end(
        &self,
        call: &Call,
        returned: &CallReturn,
        session: &str,
    ) -> Result<LinearizationPoint, String> {
        let (shard, replayed) = self.locks_shard(call);
        let ended = replayed.sessions.get(session).and_then(|life| life.ended);
        let place = ended.filter(|ended| ended.reason != SessionEnd::NamespaceDeleted).map(|ended| ended.slice + 1);
        match place.filter(|place| place <= self.window(&shard, call, returned).end()) {
            Some(place) => Ok(LinearizationPoint::At(vec![(shard, place)])),
            None => Err(format!("the answer says that the session is closed, but {shard} does not know that")),
        }
    }
}

/// The end of the entry in which a slice ends at that place.
pub(super) fn end_of_entry(ends: &[usize], place: usize) -> usize {
    ends.get(ends.partition_point(|end| *end < place)).copied().unwrap_or(place)
}
