//! Queues of waiting claims, by path.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use holdfast_primitives::chunked_set::ChunkedSet;

use super::owner::OwnerId;
use crate::{Mode, WaitId};

/// A position in the queue of a namespace: upgrades first, then the other requests, each in order of arrival. Revisions
/// stay below 2^53, so one higher bit separates the two groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueuePosition(u64);

const NON_UPGRADE_BIT: u64 = 1 << 63;

impl QueuePosition {
    /// Before all requests.
    pub(super) const FIRST: Self = Self(0);
    /// After all upgrades and before all other requests.
    pub(super) const AFTER_UPGRADES: Self = Self(NON_UPGRADE_BIT - 1);
    /// After all requests.
    pub(super) const LAST: Self = Self(u64::MAX);

    pub(super) fn of(wait: WaitId, upgrade: bool) -> Self {
        Self(if upgrade { wait.0 } else { wait.0 | NON_UPGRADE_BIT })
    }

    /// Returns the position with that number.
    pub(super) fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// Returns its number, in which bit 62 is not set.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn is_upgrade(self) -> bool {
        self.0 & NON_UPGRADE_BIT == 0
    }

    pub(super) fn wait(self) -> WaitId {
        WaitId(self.0 & !NON_UPGRADE_BIT)
    }
}

/// The waiting claims of one mode at a path, or below it.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimQueue {
    entries: ChunkedSet<QueuePosition, QueuedClaim>,
    /// The number of entries.
    len: usize,
    /// The first request of each claim set.
    first_of_sets: BTreeSet<QueuePosition>,
}

impl ClaimQueue {
    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the position of the first request.
    pub(super) fn first(&self) -> Option<QueuePosition> {
        self.entries.first().map(|entry| entry.position)
    }

    /// Iterates over all requests in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = QueuedClaim> {
        self.entries.iter()
    }

    /// Iterates in order over the requests before a position.
    pub(super) fn before(&self, position: QueuePosition) -> impl DoubleEndedIterator<Item = QueuedClaim> {
        self.entries.iter_before(&position, QueuedClaim::order_to(position))
    }

    /// Iterates in order over the requests at or after a position.
    pub(super) fn at_or_after(&self, position: QueuePosition) -> impl Iterator<Item = QueuedClaim> {
        self.entries.iter_from(&position, QueuedClaim::order_to(position))
    }

    /// Returns how many requests are before a position, up to a limit, without a look at each of them.
    pub(super) fn count_before(&self, position: QueuePosition, max: usize) -> usize {
        self.entries.count_before_key(QueuedClaim::order_to(position), max)
    }

    /// Returns the first request of each claim set, as far as it is before that position.
    pub(super) fn first_of_each_set(&self, before: QueuePosition) -> impl Iterator<Item = QueuePosition> {
        self.first_of_sets.range(..before).copied()
    }

    /// Returns whether the request is the first of its claim set.
    pub(super) fn is_first_of_set(&self, position: QueuePosition) -> bool {
        self.first_of_sets.contains(&position)
    }

    fn add(&mut self, position: QueuePosition, owner: OwnerId) {
        let order = QueuedClaim::order_to(position);
        if self.entries.insert(QueuedClaim { position, owner, claim_count: 1 }, order, |entry| entry.position) {
            self.len += 1;
        } else if let Some(entry) = self.entries.find_mut(&position, order) {
            entry.claim_count += 1;
        }
    }

    fn remove(&mut self, position: QueuePosition) {
        let order = QueuedClaim::order_to(position);
        let entry = self.entries.find_mut(&position, order).expect("a waiting claim is in its lines");
        entry.claim_count -= 1;
        if entry.claim_count == 0 {
            self.entries.remove(&position, order);
            self.len -= 1;
        }
    }
}

/// A request in a claim queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedClaim {
    pub(super) position: QueuePosition,
    pub(super) owner: OwnerId,
    /// The number of its claims here; more than one only in the queue of a subtree.
    claim_count: u32,
}

impl QueuedClaim {
    /// Returns how entries compare to a position.
    fn order_to(position: QueuePosition) -> impl Fn(&Self) -> Ordering + Copy {
        move |entry| entry.position.cmp(&position)
    }
}

/// The waiting claims at a path, and those below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) own: ClaimQueues,
    pub(super) subtree: ClaimQueues,
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

    pub(super) fn add(&mut self, mode: Mode, position: QueuePosition, owner: OwnerId) {
        self.of_mut(mode).add(position, owner);
    }

    pub(super) fn remove(&mut self, mode: Mode, position: QueuePosition) {
        self.of_mut(mode).remove(position);
    }

    /// Marks or unmarks the request as the first of its claim set.
    pub(super) fn mark_first(&mut self, mode: Mode, position: QueuePosition, is_first: bool) {
        let kinds = &mut self.of_mut(mode).first_of_sets;
        if is_first {
            kinds.insert(position)
        } else {
            kinds.remove(&position)
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
        self.own.is_empty() && self.subtree.is_empty()
    }
}
