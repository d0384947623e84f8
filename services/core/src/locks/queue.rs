//! Waiting claims, by where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use super::owner::OwnerId;
use crate::{Mode, WaitId};

/// A place in the queue of a namespace: first those that wait to change a mode, then the others, each in the order in
/// which they began to wait. Revisions stay below 2^53, so one bit above them tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueuePosition(u64);

const NOT_AN_UPGRADE: u64 = 1 << 63;

impl QueuePosition {
    /// Before all.
    pub(super) const FIRST: Self = Self(0);
    /// After all upgrades and before all others.
    pub(super) const AFTER_UPGRADES: Self = Self(NOT_AN_UPGRADE - 1);
    /// After all.
    pub(super) const LAST: Self = Self(u64::MAX);

    pub(super) fn of(wait: WaitId, upgrade: bool) -> Self {
        Self(if upgrade { wait.0 } else { wait.0 | NOT_AN_UPGRADE })
    }

    pub(super) fn is_upgrade(self) -> bool {
        self.0 & NOT_AN_UPGRADE == 0
    }

    pub(super) fn wait(self) -> WaitId {
        WaitId(self.0 & !NOT_AN_UPGRADE)
    }
}

/// The claims of one mode in one place, or under it.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimQueue {
    entries: BTreeMap<QueuePosition, QueuedClaim>,
    /// The first request of each kind: of the same claims.
    kinds: BTreeSet<QueuePosition>,
}

impl ClaimQueue {
    /// The first requests of each kind, as far as they are before that place.
    pub(super) fn kinds(&self, before: QueuePosition) -> impl Iterator<Item = QueuePosition> {
        self.kinds.range(..before).copied()
    }

    /// Whether the request is the first of its kind.
    pub(super) fn is_first(&self, place: QueuePosition) -> bool {
        self.kinds.contains(&place)
    }
}

impl Deref for ClaimQueue {
    type Target = BTreeMap<QueuePosition, QueuedClaim>;

    fn deref(&self) -> &Self::Target {
        &self.entries
    }
}

/// One request in a line.
#[derive(Clone, Debug)]
pub(super) struct QueuedClaim {
    pub(super) owner: OwnerId,
    /// How many of its claims are here; more than one only under a path.
    claims: u32,
}

/// The waiting claims of one path, and those under it.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) here: ClaimQueues,
    pub(super) beneath: ClaimQueues,
}

/// Waiting claims by mode.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimQueues {
    pub(super) reads: ClaimQueue,
    pub(super) writes: ClaimQueue,
}

impl ClaimQueues {
    fn of_mut(&mut self, mode: Mode) -> &mut ClaimQueue {
        match mode {
            Mode::Read => &mut self.reads,
            Mode::Write => &mut self.writes,
        }
    }

    pub(super) fn add(&mut self, mode: Mode, place: QueuePosition, owner: OwnerId) {
        self.of_mut(mode).entries.entry(place).or_insert(QueuedClaim { owner, claims: 0 }).claims += 1;
    }

    pub(super) fn remove(&mut self, mode: Mode, place: QueuePosition) {
        let line = self.of_mut(mode);
        let entry = line.entries.get_mut(&place).expect("a waiting claim is in its lines");
        entry.claims -= 1;
        if entry.claims == 0 {
            line.entries.remove(&place);
        }
    }

    /// Whether the request is the first of its kind.
    pub(super) fn mark(&mut self, mode: Mode, place: QueuePosition, is_first: bool) {
        let kinds = &mut self.of_mut(mode).kinds;
        if is_first {
            kinds.insert(place)
        } else {
            kinds.remove(&place)
        };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.reads.len() + self.writes.len()
    }
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.here.is_empty() && self.beneath.is_empty()
    }
}
