//! The paths of a namespace that are held or waited for, as a tree by segment.
//!
//! Every path knows the holds and waiting claims at it and below it, so walking down one path finds all conflicts.

use holdfast_primitives::chunked_set::ChunkedSet;

use super::charge;
use super::evaluate::Evaluation;
use super::hold::Hold;
use super::holds::Holds;
use super::name::Name;
use super::node_line::NodeLine;
use super::owner::OwnerId;
use super::owner_multiset::OwnerMultiset;
use super::path_table::{NodePath, PathTable};
use super::queue::{ClaimQueue, Queue, QueuePosition};
use super::slab::Slab;
use crate::{Mode, Path, Revision};

/// Identifies a path of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u32);

/// The empty path. It always exists.
pub(super) const ROOT: NodeId = NodeId(0);

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: Name,
    pub(super) parent: NodeId,
    /// The last change of the holds at this path.
    pub(super) revision: Revision,
    pub(super) holds: Holds,
    /// The index of its extra, or [`NO_EXTRA`].
    extra: u32,
}

const NO_EXTRA: u32 = u32::MAX;

/// Data that most paths do without, because they have no descendants and no waiters. It is stored apart, because the
/// data of a subtree may be large, and all of it can be recomputed from the paths.
#[derive(Clone, Debug, Default)]
struct NodeExtra {
    /// In order of name, which each child stores.
    children: ChunkedSet<Name, NodeId>,
    subtree: SubtreeHolds,
    queue: Queue,
}

/// Identifies a claim queue: 0 and 1 are the READ and WRITE claims of the path itself, 2 and 3 those below it.
pub(super) type ClaimQueueKey = (NodeId, u8);

/// The holds below a path: in any phase, and in the first phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SubtreeHolds {
    pub(super) reads: OwnerMultiset,
    pub(super) writes: OwnerMultiset,
    pub(super) reads_held: OwnerMultiset,
    pub(super) writes_held: OwnerMultiset,
}

/// The owners whose holds exclude a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainingOwners {
    Nobody,
    One(OwnerId),
    Several,
}

impl SubtreeHolds {
    /// Returns the owners whose holds exclude a claim of that mode above them.
    pub(super) fn excluding(&self, mode: Mode) -> RemainingOwners {
        let of = |crowd: &OwnerMultiset| match crowd.only() {
            _ if crowd.is_empty() => RemainingOwners::Nobody,
            Some(owner) => RemainingOwners::One(owner),
            None => RemainingOwners::Several,
        };
        match (of(&self.writes), of(&self.reads)) {
            (writes, _) if mode == Mode::Read => writes,
            (writes, RemainingOwners::Nobody) => writes,
            (RemainingOwners::Nobody, reads) => reads,
            (writes, reads) if writes == reads => writes,
            _ => RemainingOwners::Several,
        }
    }
}

/// The existing part of a path: its nodes from the root on, and whether the last one is the path itself.
#[derive(Clone, Debug)]
pub(super) struct PathLookup {
    pub(super) ancestry: NodeLine,
    pub(super) exact: bool,
}

impl PathLookup {
    /// Returns the path itself, if the tree contains it.
    pub(super) fn node(&self) -> Option<NodeId> {
        if self.exact { self.ancestry.last().copied() } else { None }
    }

    /// Returns the ancestors from the root on.
    pub(super) fn ancestors(&self) -> &[NodeId] {
        if self.exact { &self.ancestry[..self.ancestry.len() - 1] } else { &self.ancestry }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    paths: PathTable,
    extras: Slab<NodeExtra>,
    /// The charge of the path names.
    name_bytes: u64,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut nodes = Slab::default();
        let root = Node { name: Name::default(), parent: ROOT, revision: 0, holds: Holds::None, extra: NO_EXTRA };
        assert_eq!(nodes.insert(root), ROOT.0, "the first number is that of the root");
        Self { paths: PathTable(nodes), extras: Slab::default(), name_bytes: 0 }
    }

    /// See [`Slab::shuffle`].
    pub(super) fn shuffle(&mut self, seed: u64) {
        self.paths.0.shuffle(seed);
        self.extras.shuffle(seed.wrapping_add(1));
    }

    /// Returns the current paths.
    pub(super) fn paths(&self) -> &PathTable {
        &self.paths
    }

    /// Returns the number of paths, including the root.
    pub(super) fn len(&self) -> usize {
        self.paths.0.len()
    }

    /// Returns the charge of the paths and their extras.
    pub(super) fn charge(&self) -> u64 {
        self.name_bytes + charge::NODE_EXTRA * self.extras.len() as u64
    }

    pub(super) fn has_extra(&self, node: NodeId) -> bool {
        self.get(node).extra != NO_EXTRA
    }

    pub(super) fn get(&self, node: NodeId) -> &Node {
        self.paths.get(node)
    }

    fn get_mut(&mut self, node: NodeId) -> &mut Node {
        self.paths.0.get_mut(node.0)
    }

    fn extra(&self, node: NodeId) -> Option<&NodeExtra> {
        let side = self.get(node).extra;
        (side != NO_EXTRA).then(|| self.extras.get(side))
    }

    /// Returns the extra of a path that has descendants or waiters.
    fn extra_mut(&mut self, node: NodeId) -> &mut NodeExtra {
        self.extras.get_mut(self.get(node).extra)
    }

    fn extra_or_insert(&mut self, node: NodeId) -> &mut NodeExtra {
        if self.get(node).extra == NO_EXTRA {
            self.get_mut(node).extra = self.extras.insert(NodeExtra::default());
        }
        self.extra_mut(node)
    }

    pub(super) fn lookup(&self, path: &Path) -> PathLookup {
        let mut line = NodeLine::default();
        line.push(ROOT);
        let mut at = ROOT;
        for segment in &path.0 {
            let Some(child) = self.child(at, segment) else {
                return PathLookup { ancestry: line, exact: false };
            };
            at = child;
            line.push(at);
        }
        PathLookup { ancestry: line, exact: true }
    }

    fn child(&self, node: NodeId, name: &str) -> Option<NodeId> {
        let name = name.as_bytes();
        self.extra(node)?.children.find(name, |child| self.paths.name(*child).cmp(name))
    }

    pub(super) fn find(&self, path: &Path) -> Option<NodeId> {
        self.lookup(path).node()
    }

    pub(super) fn lookup_node(&self, node: NodeId) -> PathLookup {
        let mut line = NodeLine::default();
        self.self_and_ancestors(node).for_each(|node| line.push(node));
        line.reverse();
        PathLookup { ancestry: line, exact: true }
    }

    /// Iterates over the path and its ancestors, the root last.
    pub(super) fn self_and_ancestors(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.paths.self_and_ancestors(node)
    }

    /// Returns the path, adding missing nodes. It stays as long as there are holds or waiting claims at it or below it.
    pub(super) fn ensure_path(&mut self, path: &Path) -> NodeId {
        let spot = self.lookup(path);
        self.ensure_rest(path, &spot)
    }

    /// Returns the paths of a request, adding missing nodes.
    pub(super) fn ensure_paths(&mut self, asked: &Evaluation<'_>) -> Vec<NodeId> {
        match (asked.claims, asked.lookups.as_slice()) {
            ([claim], [spot]) => vec![self.ensure_rest(&claim.path, spot)],
            // A path may begin with nodes that were added for another.
            (claims, _) => claims.iter().map(|claim| self.ensure_path(&claim.path)).collect(),
        }
    }

    /// Returns the path, adding nodes that are missing by its lookup.
    fn ensure_rest(&mut self, path: &Path, spot: &PathLookup) -> NodeId {
        let known = spot.ancestry.len() - 1;
        let mut at = *spot.ancestry.last().expect("every path begins with the root");
        for segment in &path.0[known..] {
            self.name_bytes += charge::path(segment.len());
            let name = segment.as_str().into();
            let node = Node { name, parent: at, revision: 0, holds: Holds::None, extra: NO_EXTRA };
            let child = NodeId(self.paths.0.insert(node));
            self.extra_or_insert(at);
            self.add_child(at, child, segment);
            at = child;
        }
        at
    }

    fn add_child(&mut self, parent: NodeId, child: NodeId, name: &str) {
        let Self { paths, extras, .. } = self;
        let children = &mut extras.get_mut(paths.get(parent).extra).children;
        let order = |other: &NodeId| paths.name(*other).cmp(name.as_bytes());
        children.insert(child, order, |child| paths.get(*child).name.clone());
    }

    /// The child must still be in the tree: the children are ordered by the names that they store.
    fn remove_child(&mut self, parent: NodeId, child: NodeId) {
        let Self { paths, extras, .. } = self;
        let children = &mut extras.get_mut(paths.get(parent).extra).children;
        let name = paths.name(child);
        children.remove(name, |other| paths.name(*other).cmp(name));
    }

    /// Removes unused paths, from this path upward.
    pub(super) fn prune(&mut self, node: NodeId) {
        let mut at = node;
        loop {
            if self.extra(at).is_some_and(NodeExtra::is_empty) {
                let side = std::mem::replace(&mut self.get_mut(at).extra, NO_EXTRA);
                self.extras.remove(side);
            }
            let here = self.get(at);
            if at == ROOT || !here.holds.is_empty() || here.extra != NO_EXTRA {
                return;
            }
            let parent = here.parent;
            self.remove_child(parent, at);
            let gone = self.paths.0.remove(at.0);
            self.name_bytes -= charge::path(gone.name.len());
            at = parent;
        }
    }

    /// Returns whether there are no holds and waiting claims at the path or below it.
    pub(super) fn is_unused(&self, node: NodeId) -> bool {
        node != ROOT && self.get(node).holds.is_empty() && self.extra(node).is_none_or(NodeExtra::is_empty)
    }

    /// Returns a path to be written.
    pub(super) fn path(&self, node: NodeId) -> NodePath<'_> {
        NodePath { paths: &self.paths, node }
    }

    pub(super) fn path_of(&self, node: NodeId) -> Path {
        Path(self.paths.segments(node).into_iter().map(str::to_owned).collect())
    }

    /// Iterates over its children in order.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.extra(node).into_iter().flat_map(|side| side.children.iter())
    }

    /// Iterates in order over its children whose name is at or after the given one.
    pub(super) fn children_from<'a>(
        &'a self,
        node: NodeId,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a str, NodeId)> + 'a {
        let name = name.as_bytes();
        let order = move |child: &NodeId| self.paths.name(*child).cmp(name);
        let children = self.extra(node).map(|side| side.children.iter_from(name, order));
        children.into_iter().flatten().map(|child| (self.get(child).name.as_str(), child))
    }

    pub(super) fn subtree(&self, node: NodeId) -> Option<&SubtreeHolds> {
        self.extra(node).map(|side| &side.subtree)
    }

    pub(super) fn queue(&self, node: NodeId) -> Option<&Queue> {
        self.extra(node).map(|side| &side.queue)
    }

    pub(super) fn add_hold(&mut self, node: NodeId, hold: Hold) {
        self.update_subtrees(node, (hold.mode, hold.is_held()), hold.owner, OwnerMultiset::add);
        self.get_mut(node).holds.insert(hold);
    }

    pub(super) fn remove_hold(&mut self, node: NodeId, owner: OwnerId) -> Hold {
        let hold = self.get_mut(node).holds.remove(owner).expect("the hold was just found");
        self.update_subtrees(node, (hold.mode, hold.is_held()), hold.owner, OwnerMultiset::remove);
        hold
    }

    /// Changes an existing hold, and updates the subtree counts above it.
    pub(super) fn change_hold(&mut self, node: NodeId, owner: OwnerId, change: impl FnOnce(&mut Hold)) {
        let hold = self.get_mut(node).holds.of_mut(owner).expect("the hold was just found");
        let before = (hold.mode, hold.is_held());
        change(hold);
        let after = (hold.mode, hold.is_held());
        if after != before {
            self.update_subtrees(node, before, owner, OwnerMultiset::remove);
            self.update_subtrees(node, after, owner, OwnerMultiset::add);
        }
    }

    /// Panics if an extra belongs to no path or to two. For tests.
    pub(super) fn verify_extras(&self) {
        let mut sides: Vec<u32> = self.iter().map(|(_, node)| node.extra).filter(|side| *side != NO_EXTRA).collect();
        assert!(sides.iter().all(|side| self.extras.find(*side).is_some()), "an extra that a path has is kept");
        let names = self.iter().filter(|(node, _)| *node != ROOT).map(|(_, node)| charge::path(node.name.len()));
        assert_eq!(self.name_bytes, names.sum::<u64>(), "paths are charged");
        assert!(self.extras.iter().all(|(_, side)| !side.is_empty()), "a side is kept for something");
        let with_sides = sides.len();
        sides.sort_unstable();
        sides.dedup();
        assert_eq!((sides.len(), self.extras.len()), (with_sides, with_sides), "a side belongs to one path");
    }

    pub(super) fn set_revision(&mut self, node: NodeId, revision: Revision) {
        self.get_mut(node).revision = revision;
    }

    fn update_subtrees(
        &mut self,
        node: NodeId,
        (mode, is_held): (Mode, bool),
        owner: OwnerId,
        change: impl Fn(&mut OwnerMultiset, OwnerId),
    ) {
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            let below = &mut self.extra_mut(at).subtree;
            let (any, held) = match mode {
                Mode::Read => (&mut below.reads, &mut below.reads_held),
                Mode::Write => (&mut below.writes, &mut below.writes_held),
            };
            change(any, owner);
            if is_held {
                change(held, owner);
            }
        }
    }

    pub(super) fn add_claim(&mut self, node: NodeId, mode: Mode, position: QueuePosition, owner: OwnerId) {
        self.extra_or_insert(node).queue.own.add(mode, position, owner);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            self.extra_mut(at).queue.subtree.add(mode, position, owner);
        }
    }

    pub(super) fn remove_claim(&mut self, node: NodeId, mode: Mode, position: QueuePosition) {
        self.extra_mut(node).queue.own.remove(mode, position);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            self.extra_mut(at).queue.subtree.remove(mode, position);
        }
        self.prune(node);
    }

    /// Records whether a request with that claim is the first of its claim set.
    pub(super) fn mark_first_of_set(&mut self, node: NodeId, mode: Mode, position: QueuePosition, is_first: bool) {
        self.extra_mut(node).queue.own.mark_first(mode, position, is_first);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            self.extra_mut(at).queue.subtree.mark_first(mode, position, is_first);
        }
    }

    /// Returns the claim queue with that key, if its path has waiters at it or below it.
    pub(super) fn claim_queue(&self, (node, kind): ClaimQueueKey) -> Option<&ClaimQueue> {
        let queue = self.queue(node)?;
        let lines = if kind < 2 { &queue.own } else { &queue.subtree };
        Some(if kind % 2 == 0 { &lines.reads } else { &lines.writes })
    }

    /// Returns the keys of the queues that contain a claim of that mode.
    pub(super) fn own_queue_keys(&self, node: NodeId, mode: Mode) -> impl Iterator<Item = ClaimQueueKey> {
        let number = u8::from(mode == Mode::Write);
        std::iter::once((node, number)).chain(self.self_and_ancestors(node).skip(1).map(move |at| (at, 2 + number)))
    }

    /// Returns the keys of the queues that conflict with a claim of that mode.
    pub(super) fn conflicting_queue_keys(&self, node: NodeId, mode: Mode) -> impl Iterator<Item = ClaimQueueKey> {
        let lines = self.self_and_ancestors(node).map(|at| (at, 0)).chain([(node, 2)]);
        lines.flat_map(move |(at, kind)| {
            let reads = (mode == Mode::Write).then_some((at, kind));
            std::iter::once((at, kind + 1)).chain(reads)
        })
    }

    /// Returns the queues that conflict with a claim or a hold of that mode: at its ancestors, at the path itself and,
    /// if the tree contains it, below it. Each queue comes with its own key.
    pub(super) fn conflicting_queues<'a>(
        &'a self,
        line: impl Iterator<Item = NodeId> + 'a,
        exact: Option<NodeId>,
        mode: Mode,
    ) -> impl Iterator<Item = (ClaimQueueKey, &'a ClaimQueue)> {
        let here = line.filter_map(|node| Some((node, 0, &self.queue(node)?.own)));
        let beneath = exact.into_iter().filter_map(|node| Some((node, 2, &self.queue(node)?.subtree)));
        here.chain(beneath).flat_map(move |(node, kind, lines)| {
            let reads = (mode == Mode::Write).then_some(((node, kind), &lines.reads));
            std::iter::once(((node, kind + 1), &lines.writes)).chain(reads)
        })
    }

    /// Iterates over all paths, in no meaningful order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.paths.iter()
    }
}

impl NodeExtra {
    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_takes_little_memory() {
        assert!(size_of::<Node>() <= 96, "a path takes {} bytes", size_of::<Node>());
    }

    #[test]
    fn paths_are_made_found_and_taken_out_again() {
        let mut tree = Tree::new();
        let path = |segments: &[&str]| Path(segments.iter().map(|segment| (*segment).to_owned()).collect());
        let deep = tree.ensure_path(&path(&["a", "b", "c"]));
        let other = tree.ensure_path(&path(&["a", "d"]));
        assert_eq!((tree.path_of(deep), tree.find(&path(&["a", "d"]))), (path(&["a", "b", "c"]), Some(other)));
        let spot = tree.lookup(&path(&["a", "b", "x", "y"]));
        assert_eq!((spot.ancestry.len(), spot.exact, spot.node()), (3, false, None));
        tree.prune(deep);
        assert_eq!((tree.len(), tree.find(&path(&["a", "b"]))), (3, None));
        tree.prune(other);
        assert_eq!(tree.len(), 1);
    }
}
