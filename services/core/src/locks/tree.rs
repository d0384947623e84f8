//! The paths of a namespace that somebody holds or awaits, as a tree by segment.
//!
//! Every path knows what is held and awaited at it and under it, so that a conflict is found by walking down one path.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::charge;
use super::hold::Hold;
use super::holds::Holds;
use super::owner::OwnerId;
use super::owner_multiset::OwnerMultiset;
use super::queue::{ClaimQueue, Queue, QueuePosition};
use super::slab::Slab;
use crate::{Mode, Path, Revision};

/// Names a path of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u32);

/// The empty path. It is always there.
pub(super) const ROOT: NodeId = NodeId(0);

#[derive(Clone, Debug)]
pub(super) struct Node {
    name: Arc<str>,
    parent: NodeId,
    /// The last change of what is held here.
    pub(super) revision: Revision,
    pub(super) holds: Holds,
    /// The number of what is beside it, or [`NO_SIDE`].
    side: u32,
}

const NO_SIDE: u32 = u32::MAX;

/// What most paths, which have nothing under them and nobody waiting, do without. It is kept aside, since what is under
/// a path may be much, and all of it can be found from the paths again.
#[derive(Clone, Debug, Default)]
struct NodeExtra {
    children: BTreeMap<Arc<str>, NodeId>,
    below: SubtreeHolds,
    queue: Queue,
}

/// Names a line: 0 and 1 are the reads and the writes of a path itself, 2 and 3 those under it.
pub(super) type LineKey = (NodeId, u8);

/// What is held under a path, in any phase and in the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SubtreeHolds {
    pub(super) reads: OwnerMultiset,
    pub(super) writes: OwnerMultiset,
    pub(super) reads_held: OwnerMultiset,
    pub(super) writes_held: OwnerMultiset,
}

/// Whose holds exclude a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainingOwners {
    Nobody,
    One(OwnerId),
    Several,
}

impl SubtreeHolds {
    /// Whose holds exclude a claim of that mode above them.
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

/// A path as far as the tree has it: the root first, and whether the last is the path itself.
#[derive(Clone, Debug)]
pub(super) struct PathLookup {
    pub(super) ancestry: Vec<NodeId>,
    pub(super) exact: bool,
}

impl PathLookup {
    /// The path itself, if the tree has it.
    pub(super) fn node(&self) -> Option<NodeId> {
        if self.exact { self.ancestry.last().copied() } else { None }
    }

    /// The ancestors, the root first.
    pub(super) fn ancestors(&self) -> &[NodeId] {
        if self.exact { &self.ancestry[..self.ancestry.len() - 1] } else { &self.ancestry }
    }
}

/// The paths alone: what a snapshot needs. A clone is cheap and stays as it is.
#[derive(Clone, Debug)]
pub(super) struct PathTable(Slab<Node>);

#[derive(Clone, Debug)]
pub(super) struct Tree {
    paths: PathTable,
    sides: Slab<NodeExtra>,
    /// What the names of the paths are charged with.
    names: u64,
}

impl PathTable {
    pub(super) fn get(&self, node: NodeId) -> &Node {
        self.0.get(node.0)
    }

    /// The path, while it is there.
    pub(super) fn find(&self, node: NodeId) -> Option<&Node> {
        self.0.find(node.0)
    }

    /// The path itself and its ancestors, the root last.
    pub(super) fn upward(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |at| (*at != ROOT).then(|| self.get(*at).parent))
    }

    pub(super) fn segments(&self, node: NodeId) -> Vec<&str> {
        let mut segments: Vec<&str> = Vec::new();
        segments.extend(self.upward(node).filter(|at| *at != ROOT).map(|at| &*self.get(at).name));
        segments.reverse();
        segments
    }

    /// All paths, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.0.iter().map(|(number, node)| (NodeId(number), node))
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut nodes = Slab::default();
        let root = Node { name: "".into(), parent: ROOT, revision: 0, holds: Holds::None, side: NO_SIDE };
        assert_eq!(nodes.insert(root), ROOT.0, "the first number is that of the root");
        Self { paths: PathTable(nodes), sides: Slab::default(), names: 0 }
    }

    /// See [`Slab::shuffle`].
    pub(super) fn shuffle(&mut self, seed: u64) {
        self.paths.0.shuffle(seed);
        self.sides.shuffle(seed.wrapping_add(1));
    }

    /// The paths as they are now.
    pub(super) fn paths(&self) -> &PathTable {
        &self.paths
    }

    /// How many paths there are, the root included.
    pub(super) fn len(&self) -> usize {
        self.paths.0.len()
    }

    /// What the paths are charged with, and what some have beside them.
    pub(super) fn charge(&self) -> u64 {
        self.names + charge::SIDE * self.sides.len() as u64
    }

    pub(super) fn has_side(&self, node: NodeId) -> bool {
        self.get(node).side != NO_SIDE
    }

    pub(super) fn get(&self, node: NodeId) -> &Node {
        self.paths.get(node)
    }

    fn get_mut(&mut self, node: NodeId) -> &mut Node {
        self.paths.0.get_mut(node.0)
    }

    fn side(&self, node: NodeId) -> Option<&NodeExtra> {
        let side = self.get(node).side;
        (side != NO_SIDE).then(|| self.sides.get(side))
    }

    /// What is beside a path that has something under it, or somebody who waits.
    fn side_mut(&mut self, node: NodeId) -> &mut NodeExtra {
        self.sides.get_mut(self.get(node).side)
    }

    fn side_or_new(&mut self, node: NodeId) -> &mut NodeExtra {
        if self.get(node).side == NO_SIDE {
            self.get_mut(node).side = self.sides.insert(NodeExtra::default());
        }
        self.side_mut(node)
    }

    pub(super) fn walk(&self, path: &Path) -> PathLookup {
        let mut line = Vec::with_capacity(path.0.len() + 1);
        line.push(ROOT);
        let mut at = ROOT;
        for segment in &path.0 {
            let side = self.side(at);
            let Some(child) = side.and_then(|side| side.children.get(segment.as_str())) else {
                return PathLookup { ancestry: line, exact: false };
            };
            at = *child;
            line.push(at);
        }
        PathLookup { ancestry: line, exact: true }
    }

    pub(super) fn find(&self, path: &Path) -> Option<NodeId> {
        self.walk(path).node()
    }

    pub(super) fn spot_of(&self, node: NodeId) -> PathLookup {
        let mut line: Vec<NodeId> = self.upward(node).collect();
        line.reverse();
        PathLookup { ancestry: line, exact: true }
    }

    /// The path itself and its ancestors, the root last.
    pub(super) fn upward(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.paths.upward(node)
    }

    /// The path, made where it is missing. It stays while somebody holds or awaits it or something under it.
    pub(super) fn make(&mut self, path: &Path) -> NodeId {
        let spot = self.walk(path);
        let known = spot.ancestry.len() - 1;
        let mut at = *spot.ancestry.last().expect("every path begins with the root");
        for segment in &path.0[known..] {
            let name: Arc<str> = segment.as_str().into();
            self.names += charge::path(segment);
            let node = Node { name: Arc::clone(&name), parent: at, revision: 0, holds: Holds::None, side: NO_SIDE };
            let child = NodeId(self.paths.0.insert(node));
            self.side_or_new(at).children.insert(name, child);
            at = child;
        }
        at
    }

    /// Takes out what nobody holds or awaits any more, from this path upward.
    pub(super) fn prune(&mut self, node: NodeId) {
        let mut at = node;
        loop {
            if self.side(at).is_some_and(NodeExtra::is_empty) {
                let side = std::mem::replace(&mut self.get_mut(at).side, NO_SIDE);
                self.sides.remove(side);
            }
            let here = self.get(at);
            if at == ROOT || !here.holds.is_empty() || here.side != NO_SIDE {
                return;
            }
            let gone = self.paths.0.remove(at.0);
            self.names -= charge::path(&gone.name);
            at = gone.parent;
            self.side_mut(at).children.remove(&gone.name);
        }
    }

    /// Whether nobody holds or awaits the path or something under it.
    pub(super) fn is_bare(&self, node: NodeId) -> bool {
        node != ROOT && self.get(node).holds.is_empty() && self.side(node).is_none_or(NodeExtra::is_empty)
    }

    pub(super) fn segments(&self, node: NodeId) -> Vec<&str> {
        self.paths.segments(node)
    }

    pub(super) fn path_of(&self, node: NodeId) -> Path {
        Path(self.segments(node).into_iter().map(str::to_owned).collect())
    }

    /// The next paths under it, in order.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.side(node).into_iter().flat_map(|side| side.children.values().copied())
    }

    /// The next paths under it whose name comes after the given one, or is it, in order.
    pub(super) fn children_from<'a>(&'a self, node: NodeId, name: &str) -> impl Iterator<Item = (&'a str, NodeId)> {
        let from = std::ops::Bound::Included(name);
        let children = self.side(node).map(|side| side.children.range::<str, _>((from, std::ops::Bound::Unbounded)));
        children.into_iter().flatten().map(|(name, child)| (&**name, *child))
    }

    pub(super) fn below(&self, node: NodeId) -> Option<&SubtreeHolds> {
        self.side(node).map(|side| &side.below)
    }

    pub(super) fn queue(&self, node: NodeId) -> Option<&Queue> {
        self.side(node).map(|side| &side.queue)
    }

    pub(super) fn add_hold(&mut self, node: NodeId, hold: Hold) {
        self.count(node, (hold.mode, hold.is_held()), hold.owner, OwnerMultiset::add);
        self.get_mut(node).holds.push(hold);
    }

    pub(super) fn remove_hold(&mut self, node: NodeId, owner: OwnerId) -> Hold {
        let hold = self.get_mut(node).holds.remove(owner).expect("the hold was just found");
        self.count(node, (hold.mode, hold.is_held()), hold.owner, OwnerMultiset::remove);
        hold
    }

    /// Changes a hold that is there, and what is known of it above.
    pub(super) fn change_hold(&mut self, node: NodeId, owner: OwnerId, change: impl FnOnce(&mut Hold)) {
        let hold = self.get_mut(node).holds.of_mut(owner).expect("the hold was just found");
        let before = (hold.mode, hold.is_held());
        change(hold);
        let after = (hold.mode, hold.is_held());
        if after != before {
            self.count(node, before, owner, OwnerMultiset::remove);
            self.count(node, after, owner, OwnerMultiset::add);
        }
    }

    /// Panics when a side is of no path, or of two. For tests.
    pub(super) fn verify_sides(&self) {
        let mut sides: Vec<u32> = self.iter().map(|(_, node)| node.side).filter(|side| *side != NO_SIDE).collect();
        assert!(sides.iter().all(|side| self.sides.find(*side).is_some()));
        let names = self.iter().filter(|(node, _)| *node != ROOT).map(|(_, node)| charge::path(&node.name));
        assert_eq!(self.names, names.sum::<u64>(), "paths are charged");
        assert!(self.sides.iter().all(|(_, side)| !side.is_empty()), "a side is kept for something");
        let with_sides = sides.len();
        sides.sort_unstable();
        sides.dedup();
        assert_eq!((sides.len(), self.sides.len()), (with_sides, with_sides), "a side belongs to one path");
    }

    pub(super) fn set_revision(&mut self, node: NodeId, revision: Revision) {
        self.get_mut(node).revision = revision;
    }

    fn count(
        &mut self,
        node: NodeId,
        (mode, is_held): (Mode, bool),
        owner: OwnerId,
        change: impl Fn(&mut OwnerMultiset, OwnerId),
    ) {
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            let below = &mut self.side_mut(at).below;
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

    pub(super) fn add_claim(&mut self, node: NodeId, mode: Mode, place: QueuePosition, owner: OwnerId) {
        self.side_or_new(node).queue.here.add(mode, place, owner);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            self.side_mut(at).queue.beneath.add(mode, place, owner);
        }
    }

    pub(super) fn remove_claim(&mut self, node: NodeId, mode: Mode, place: QueuePosition) {
        self.side_mut(node).queue.here.remove(mode, place);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            self.side_mut(at).queue.beneath.remove(mode, place);
        }
        self.prune(node);
    }

    /// Notes whether a request with that claim is the first of its kind.
    pub(super) fn mark_kind(&mut self, node: NodeId, mode: Mode, place: QueuePosition, is_first: bool) {
        self.side_mut(node).queue.here.mark(mode, place, is_first);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            self.side_mut(at).queue.beneath.mark(mode, place, is_first);
        }
    }

    /// The line of that key, if somebody waits at its path or under it.
    pub(super) fn line(&self, (node, kind): LineKey) -> Option<&ClaimQueue> {
        let queue = self.queue(node)?;
        let lines = if kind < 2 { &queue.here } else { &queue.beneath };
        Some(if kind % 2 == 0 { &lines.reads } else { &lines.writes })
    }

    /// The keys of the lines in which a claim of that mode is.
    pub(super) fn own_lines(&self, node: NodeId, mode: Mode) -> impl Iterator<Item = LineKey> {
        let number = u8::from(mode == Mode::Write);
        std::iter::once((node, number)).chain(self.upward(node).skip(1).map(move |at| (at, 2 + number)))
    }

    /// The keys of the lines that conflict with a claim of that mode.
    pub(super) fn conflicting_lines(&self, node: NodeId, mode: Mode) -> impl Iterator<Item = LineKey> {
        let lines = self.upward(node).map(|at| (at, 0)).chain([(node, 2)]);
        lines.flat_map(move |(at, kind)| {
            let reads = (mode == Mode::Write).then_some((at, kind));
            std::iter::once((at, kind + 1)).chain(reads)
        })
    }

    /// The lines of waiting claims that conflict with a claim or a hold of that mode there: at its ancestors, at the
    /// path itself, and, if the tree has it, under it. Each line comes with a key of its own.
    pub(super) fn lines<'a>(
        &'a self,
        line: impl Iterator<Item = NodeId> + 'a,
        exact: Option<NodeId>,
        mode: Mode,
    ) -> impl Iterator<Item = (LineKey, &'a ClaimQueue)> {
        let here = line.filter_map(|node| Some((node, 0, &self.queue(node)?.here)));
        let beneath = exact.into_iter().filter_map(|node| Some((node, 2, &self.queue(node)?.beneath)));
        here.chain(beneath).flat_map(move |(node, kind, lines)| {
            let reads = (mode == Mode::Write).then_some(((node, kind), &lines.reads));
            std::iter::once(((node, kind + 1), &lines.writes)).chain(reads)
        })
    }

    /// All paths, in no order that means anything.
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
        assert!(size_of::<Node>() <= 88, "a path takes {} bytes", size_of::<Node>());
    }

    #[test]
    fn paths_are_made_found_and_taken_out_again() {
        let mut tree = Tree::new();
        let path = |segments: &[&str]| Path(segments.iter().map(|segment| (*segment).to_owned()).collect());
        let deep = tree.make(&path(&["a", "b", "c"]));
        let other = tree.make(&path(&["a", "d"]));
        assert_eq!((tree.path_of(deep), tree.find(&path(&["a", "d"]))), (path(&["a", "b", "c"]), Some(other)));
        let spot = tree.walk(&path(&["a", "b", "x", "y"]));
        assert_eq!((spot.ancestry.len(), spot.exact, spot.node()), (3, false, None));
        tree.prune(deep);
        assert_eq!((tree.len(), tree.find(&path(&["a", "b"]))), (3, None));
        tree.prune(other);
        assert_eq!(tree.len(), 1);
    }
}
