//! The paths of a namespace by number.

use super::event_view::{PathWriter, Segments};
use super::slab::Slab;
use super::tree::{Node, NodeId, ROOT};

/// Only the paths, which is all that a snapshot needs. A clone is cheap and unaffected by later changes.
#[derive(Clone, Debug)]
pub(super) struct PathTable(pub(super) Slab<Node>);

impl PathTable {
    pub(super) fn get(&self, node: NodeId) -> &Node {
        self.0.get(node.0)
    }

    /// Returns the last segment of a path.
    pub(super) fn name(&self, node: NodeId) -> &[u8] {
        self.get(node).name.as_bytes()
    }

    /// Returns the path, if it still exists.
    pub(super) fn find(&self, node: NodeId) -> Option<&Node> {
        self.0.find(node.0)
    }

    /// Iterates over the path and its ancestors, the root last.
    pub(super) fn self_and_ancestors(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |at| (*at != ROOT).then(|| self.get(*at).parent))
    }

    pub(super) fn segments(&self, node: NodeId) -> Vec<&str> {
        let mut segments: Vec<&str> = Vec::new();
        segments.extend(self.self_and_ancestors(node).filter(|at| *at != ROOT).map(|at| self.get(at).name.as_str()));
        segments.reverse();
        segments
    }

    /// Iterates over all paths, in no meaningful order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.0.iter().map(|(number, node)| (NodeId(number), node))
    }
}

/// A path of the tree, to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePath<'a> {
    pub(super) paths: &'a PathTable,
    pub(super) node: NodeId,
}

impl Segments for NodePath<'_> {
    fn write(&self, out: &mut PathWriter<'_>) {
        let Self { paths, node } = *self;
        if node != ROOT && paths.get(node).parent == ROOT {
            out.begin(1);
            return out.segment(paths.name(node));
        }
        let segments = paths.segments(node);
        out.begin(segments.len());
        segments.into_iter().for_each(|segment| out.segment(segment.as_bytes()));
    }
}
