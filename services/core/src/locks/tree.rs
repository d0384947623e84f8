//! The paths of a namespace that somebody holds or awaits, as a tree by segment.
//!
//! Every path knows what is held and awaited at it and under it, so that a conflict is found by walking down one path.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::crowd::Crowd;
use super::hold::{Hold, Holds};
use super::owner::OwnerId;
use super::queue::{Line, Place, Queue};
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
    side: Option<Box<Side>>,
}

/// What most paths, which have nothing under them and nobody waiting, do without.
#[derive(Clone, Debug, Default)]
struct Side {
    children: BTreeMap<Arc<str>, NodeId>,
    below: Below,
    queue: Queue,
}

/// What is held under a path, in any phase and in the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Below {
    pub(super) reads: Crowd,
    pub(super) writes: Crowd,
    pub(super) reads_held: Crowd,
    pub(super) writes_held: Crowd,
}

/// A path as far as the tree has it: the root first, and whether the last is the path itself.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) line: Vec<NodeId>,
    pub(super) exact: bool,
}

impl Spot {
    /// The path itself, if the tree has it.
    pub(super) fn node(&self) -> Option<NodeId> {
        if self.exact { self.line.last().copied() } else { None }
    }

    /// The ancestors, the root first.
    pub(super) fn ancestors(&self) -> &[NodeId] {
        if self.exact { &self.line[..self.line.len() - 1] } else { &self.line }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Slab<Node>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut nodes = Slab::default();
        let root = Node { name: "".into(), parent: ROOT, revision: 0, holds: Holds::None, side: None };
        assert_eq!(nodes.insert(root), ROOT.0, "the first number is that of the root");
        Self { nodes }
    }

    /// How many paths there are, the root included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn get(&self, node: NodeId) -> &Node {
        self.nodes.get(node.0)
    }

    fn get_mut(&mut self, node: NodeId) -> &mut Node {
        self.nodes.get_mut(node.0)
    }

    pub(super) fn walk(&self, path: &Path) -> Spot {
        let mut line = Vec::with_capacity(path.0.len() + 1);
        line.push(ROOT);
        let mut at = ROOT;
        for segment in &path.0 {
            let side = self.get(at).side.as_deref();
            let Some(child) = side.and_then(|side| side.children.get(segment.as_str())) else {
                return Spot { line, exact: false };
            };
            at = *child;
            line.push(at);
        }
        Spot { line, exact: true }
    }

    pub(super) fn find(&self, path: &Path) -> Option<NodeId> {
        self.walk(path).node()
    }

    pub(super) fn spot_of(&self, node: NodeId) -> Spot {
        let mut line: Vec<NodeId> = self.upward(node).collect();
        line.reverse();
        Spot { line, exact: true }
    }

    /// The path itself and its ancestors, the root last.
    pub(super) fn upward(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |at| (*at != ROOT).then(|| self.get(*at).parent))
    }

    /// The path, made where it is missing. It stays while somebody holds or awaits it or something under it.
    pub(super) fn make(&mut self, path: &Path) -> NodeId {
        let spot = self.walk(path);
        let known = spot.line.len() - 1;
        let mut at = *spot.line.last().expect("every path begins with the root");
        for segment in &path.0[known..] {
            let name: Arc<str> = segment.as_str().into();
            let node = Node { name: Arc::clone(&name), parent: at, revision: 0, holds: Holds::None, side: None };
            let child = NodeId(self.nodes.insert(node));
            self.get_mut(at).side.get_or_insert_default().children.insert(name, child);
            at = child;
        }
        at
    }

    /// Takes out what nobody holds or awaits any more, from this path upward.
    pub(super) fn prune(&mut self, node: NodeId) {
        let mut at = node;
        loop {
            let here = self.get_mut(at);
            if here.side.as_deref().is_some_and(Side::is_empty) {
                here.side = None;
            }
            if at == ROOT || !here.holds.is_empty() || here.side.is_some() {
                return;
            }
            let gone = self.nodes.remove(at.0);
            at = gone.parent;
            let side = self.get_mut(at).side.as_mut().expect("a parent has its children");
            side.children.remove(&gone.name);
        }
    }

    /// Whether nobody holds or awaits the path or something under it.
    pub(super) fn is_bare(&self, node: NodeId) -> bool {
        let here = self.get(node);
        node != ROOT && here.holds.is_empty() && here.side.as_deref().is_none_or(Side::is_empty)
    }

    pub(super) fn segments(&self, node: NodeId) -> Vec<&str> {
        let mut segments: Vec<&str> = Vec::new();
        segments.extend(self.upward(node).filter(|at| *at != ROOT).map(|at| &*self.get(at).name));
        segments.reverse();
        segments
    }

    pub(super) fn path_of(&self, node: NodeId) -> Path {
        Path(self.segments(node).into_iter().map(str::to_owned).collect())
    }

    /// The next paths under it, in order.
    pub(super) fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.get(node).side.iter().flat_map(|side| side.children.values().copied())
    }

    /// The next paths under it whose name comes after the given one, or is it, in order.
    pub(super) fn children_from<'a>(&'a self, node: NodeId, name: &str) -> impl Iterator<Item = (&'a str, NodeId)> {
        let from = std::ops::Bound::Included(name);
        let side = self.get(node).side.as_deref();
        let children = side.map(|side| side.children.range::<str, _>((from, std::ops::Bound::Unbounded)));
        children.into_iter().flatten().map(|(name, child)| (&**name, *child))
    }

    pub(super) fn below(&self, node: NodeId) -> Option<&Below> {
        self.get(node).side.as_deref().map(|side| &side.below)
    }

    pub(super) fn queue(&self, node: NodeId) -> Option<&Queue> {
        self.get(node).side.as_deref().map(|side| &side.queue)
    }

    pub(super) fn add_hold(&mut self, node: NodeId, hold: Hold) {
        self.count(node, (hold.mode, hold.is_held()), hold.owner, Crowd::add);
        self.get_mut(node).holds.push(hold);
    }

    pub(super) fn remove_hold(&mut self, node: NodeId, owner: OwnerId) -> Hold {
        let hold = self.get_mut(node).holds.remove(owner).expect("the hold was just found");
        self.count(node, (hold.mode, hold.is_held()), hold.owner, Crowd::remove);
        hold
    }

    /// Changes a hold that is there, and what is known of it above.
    pub(super) fn change_hold(&mut self, node: NodeId, owner: OwnerId, change: impl FnOnce(&mut Hold)) {
        let hold = self.get_mut(node).holds.of_mut(owner).expect("the hold was just found");
        let before = (hold.mode, hold.is_held());
        change(hold);
        let after = (hold.mode, hold.is_held());
        if after != before {
            self.count(node, before, owner, Crowd::remove);
            self.count(node, after, owner, Crowd::add);
        }
    }

    pub(super) fn set_revision(&mut self, node: NodeId, revision: Revision) {
        self.get_mut(node).revision = revision;
    }

    fn count(
        &mut self,
        node: NodeId,
        (mode, is_held): (Mode, bool),
        owner: OwnerId,
        change: impl Fn(&mut Crowd, OwnerId),
    ) {
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            let below = &mut self.get_mut(at).side.as_mut().expect("a parent has its children").below;
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

    pub(super) fn add_claim(&mut self, node: NodeId, mode: Mode, place: Place, owner: OwnerId) {
        self.get_mut(node).side.get_or_insert_default().queue.here.add(mode, place, owner);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            let side = self.get_mut(at).side.as_mut().expect("a parent has its children");
            side.queue.beneath.add(mode, place, owner);
        }
    }

    pub(super) fn remove_claim(&mut self, node: NodeId, mode: Mode, place: Place) {
        let side = self.get_mut(node).side.as_mut().expect("a waiting claim is in its lines");
        side.queue.here.remove(mode, place);
        let mut at = node;
        while at != ROOT {
            at = self.get(at).parent;
            let side = self.get_mut(at).side.as_mut().expect("a parent has its children");
            side.queue.beneath.remove(mode, place);
        }
        self.prune(node);
    }

    /// The lines of waiting claims that conflict with a claim or a hold of that mode there: at its ancestors, at the
    /// path itself, and, if the tree has it, under it. Each line comes with a key of its own.
    pub(super) fn lines<'a>(
        &'a self,
        line: impl Iterator<Item = NodeId> + 'a,
        exact: Option<NodeId>,
        mode: Mode,
    ) -> impl Iterator<Item = ((NodeId, u8), &'a Line)> {
        let here = line.filter_map(|node| Some((node, 0, &self.queue(node)?.here)));
        let beneath = exact.into_iter().filter_map(|node| Some((node, 2, &self.queue(node)?.beneath)));
        here.chain(beneath).flat_map(move |(node, kind, lines)| {
            let reads = (mode == Mode::Write).then_some(((node, kind), &lines.reads));
            std::iter::once(((node, kind + 1), &lines.writes)).chain(reads)
        })
    }

    /// All paths, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(number, node)| (NodeId(number), node))
    }
}

impl Side {
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
        let deep = tree.make(&path(&["a", "b", "c"]));
        let other = tree.make(&path(&["a", "d"]));
        assert_eq!((tree.path_of(deep), tree.find(&path(&["a", "d"]))), (path(&["a", "b", "c"]), Some(other)));
        let spot = tree.walk(&path(&["a", "b", "x", "y"]));
        assert_eq!((spot.line.len(), spot.exact, spot.node()), (3, false, None));
        tree.prune(deep);
        assert_eq!((tree.len(), tree.find(&path(&["a", "b"]))), (3, None));
        tree.prune(other);
        assert_eq!(tree.len(), 1);
    }
}
