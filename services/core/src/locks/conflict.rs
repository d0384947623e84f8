//! Finds the holds that conflict with a claim: holds of other owners at the path, at its ancestors and below it, unless
//! both modes are READ.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::{NodeId, PathLookup, RemainingOwners};
use super::waiting::BlockedOn;
use crate::{Mode, Reason};

impl Namespace {
    /// Returns why the holds of other owners block a claim. The cost is proportional to the depth of the path.
    pub(super) fn conflict_reason(&self, owner: OwnerId, mode: Mode, spot: &PathLookup) -> Option<Reason> {
        self.spend(spot.ancestry.len());
        let mut at = |node: NodeId| {
            let mut conflicting = self.conflicting_holds_at(node, owner, mode).peekable();
            conflicting.peek()?;
            Some(conflicting.any(|hold| self.is_current(node, hold)))
        };
        let same = spot.node().and_then(&mut at);
        let ancestors = spot.ancestors().iter().filter_map(|node| at(*node)).reduce(|one, other| one || other);
        let below = spot.node().and_then(|node| self.subtree_conflict(node, owner, mode));
        let found = [(same, Reason::Held), (ancestors, Reason::Ancestor), (below, Reason::Descendant)];
        let mut found = found.into_iter().filter_map(|(held, reason)| Some((held?, reason))).peekable();
        let (_, reason) = *found.peek()?;
        Some(if found.any(|(held, _)| held) { reason } else { Reason::Transition })
    }

    /// Returns whether holds of other owners below the path conflict and, if so, whether one of them is not in
    /// transition.
    pub(super) fn subtree_conflict(&self, node: NodeId, owner: OwnerId, mode: Mode) -> Option<bool> {
        let below = self.tree.subtree(node)?;
        let reads_count = mode == Mode::Write;
        let any = below.writes.contains_other_than(owner) || (reads_count && below.reads.contains_other_than(owner));
        any.then(|| {
            below.writes_held.contains_other_than(owner) || (reads_count && below.reads_held.contains_other_than(owner))
        })
    }

    /// Returns the conflicting holds at exactly this path.
    pub(super) fn conflicting_holds_at(&self, node: NodeId, owner: OwnerId, mode: Mode) -> impl Iterator<Item = &Hold> {
        let holds = self.tree.get(node).holds.as_slice();
        let all_read = mode == Mode::Read && holds.first().is_none_or(|hold| hold.mode == Mode::Read);
        let holds = if all_read { &[] } else { holds };
        holds.iter().filter(move |hold| hold.owner != owner)
    }

    /// Calls `look` with each conflicting hold until it breaks off: first the path, then its ancestors from the root
    /// down, then the paths below in path order. Visits at most `max_paths` paths below it. Returns whether it visited
    /// all of them.
    pub(super) fn visit_conflicts<'a, B>(
        &'a self,
        (owner, mode, spot): (OwnerId, Mode, &PathLookup),
        max_paths: usize,
        mut look: impl FnMut(NodeId, &'a Hold) -> ControlFlow<B>,
    ) -> ControlFlow<B, bool> {
        for node in spot.node().iter().chain(spot.ancestors()) {
            self.spend(1);
            for hold in self.conflicting_holds_at(*node, owner, mode) {
                self.spend(1);
                look(*node, hold)?;
            }
        }
        let Some(node) = spot.node() else { return ControlFlow::Continue(true) };
        if self.subtree_conflict(node, owner, mode).is_none() {
            return ControlFlow::Continue(true);
        }
        let mut searched = 0;
        let mut open = vec![self.tree.children(node)];
        while let Some(children) = open.last_mut() {
            let Some(child) = children.next() else {
                open.pop();
                continue;
            };
            if searched == max_paths {
                return ControlFlow::Continue(false);
            }
            searched += 1;
            self.spend(1);
            for hold in self.conflicting_holds_at(child, owner, mode) {
                look(child, hold)?;
            }
            if self.subtree_conflict(child, owner, mode).is_some() {
                open.push(self.tree.children(child));
            }
        }
        ControlFlow::Continue(true)
    }

    /// Returns the hold or subtree that blocks a claim.
    pub(super) fn first_conflicting_hold(&self, owner: OwnerId, mode: Mode, spot: &PathLookup) -> Option<BlockedOn> {
        let above = spot.node().into_iter().chain(spot.ancestors().iter().copied());
        let mut holds = above.filter_map(|node| Some((node, self.conflicting_holds_at(node, owner, mode).next()?)));
        if let Some((node, hold)) = holds.next() {
            return Some(BlockedOn::Hold(node, hold.owner));
        }
        let node = spot.node()?;
        self.subtree_conflict(node, owner, mode).map(|_| BlockedOn::Subtree(node, mode))
    }

    /// Schedules requests that are blocked on the holds below a path and no longer conflict. The remaining holds
    /// exclude all owners, all but their only owner, or none.
    pub(super) fn unblock_ancestors(&mut self, node: NodeId) {
        let above: Vec<NodeId> = self.tree.self_and_ancestors(node).skip(1).collect();
        for mode in [Mode::Read, Mode::Write] {
            // Towards the root the set of holders that exclude a mode only grows, so at most one owner is ever the only
            // one in it. For the two modes these may be two owners.
            let mut own: Option<BTreeMap<BlockedOn, Vec<QueuePosition>>> = None;
            for node in above.iter().copied() {
                let watch = BlockedOn::Subtree(node, mode);
                match self.tree.subtree(node).map_or(RemainingOwners::Nobody, |below| below.excluding(mode)) {
                    RemainingOwners::Nobody => self.blocked_index.unblock(watch),
                    RemainingOwners::One(owner) if self.blocked_index.is_blocking(watch) => {
                        let own = own.get_or_insert_with(|| self.subtree_blocks_of(owner));
                        let positions = own.get(&watch).into_iter().flatten();
                        positions.for_each(|position| self.blocked_index.schedule(*position));
                    }
                    RemainingOwners::One(_) | RemainingOwners::Several => {}
                }
            }
        }
    }

    /// Returns the waiting requests of an owner that are blocked on a subtree, by their blocker.
    fn subtree_blocks_of(&self, owner: OwnerId) -> BTreeMap<BlockedOn, Vec<QueuePosition>> {
        let mut watches: BTreeMap<BlockedOn, Vec<QueuePosition>> = BTreeMap::new();
        for position in self.owners.get(owner).queue_positions() {
            let watch = self.waiting(position).blocked_on;
            if matches!(watch, BlockedOn::Subtree(..)) {
                watches.entry(watch).or_default().push(position);
            }
        }
        watches
    }

    /// Returns the first conflicting holds, at most `max`.
    pub(super) fn blocking_holds(
        &self,
        owner: OwnerId,
        mode: Mode,
        spot: &PathLookup,
        max: usize,
    ) -> Vec<(NodeId, &Hold)> {
        let mut found = Vec::new();
        let _ = self.visit_conflicts((owner, mode, spot), self.bounds.paths_searched_for_blockers, |node, hold| {
            found.push((node, hold));
            if found.len() == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }

    /// Returns whether the owner holds the path or an ancestor in at least this mode. If so, any request that waits for
    /// such a claim already waits for the owner. Nobody waits for the owner of a hold that is only kept from others.
    pub(super) fn is_covered(&self, owner: OwnerId, mode: Mode, spot: &PathLookup) -> bool {
        spot.ancestry
            .iter()
            .any(|node| self.hold(*node, owner).is_some_and(|hold| hold.mode >= mode && !hold.is_kept()))
    }
}
