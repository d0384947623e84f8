//! A few nodes from the root down, without an allocation.

use std::ops::{Deref, DerefMut};

use super::tree::{NodeId, ROOT};

/// Maximum number of nodes that are stored in place.
const MAX_SHORT: usize = 6;

/// Nodes of a path. Most paths are short, and each command looks some up.
#[derive(Clone, Debug)]
pub(super) enum NodeLine {
    Short(usize, [NodeId; MAX_SHORT]),
    Long(Vec<NodeId>),
}

impl Default for NodeLine {
    fn default() -> Self {
        Self::Short(0, [ROOT; MAX_SHORT])
    }
}

impl NodeLine {
    pub(super) fn push(&mut self, node: NodeId) {
        match self {
            Self::Short(len, nodes) => match nodes.get_mut(*len) {
                Some(next) => {
                    *next = node;
                    *len += 1;
                }
                None => *self = Self::Long(nodes.iter().copied().chain([node]).collect()),
            },
            Self::Long(nodes) => nodes.push(node),
        }
    }
}

impl Deref for NodeLine {
    type Target = [NodeId];

    fn deref(&self) -> &[NodeId] {
        match self {
            Self::Short(len, nodes) => nodes.get(..*len).unwrap_or(nodes),
            Self::Long(nodes) => nodes,
        }
    }
}

impl DerefMut for NodeLine {
    fn deref_mut(&mut self) -> &mut [NodeId] {
        match self {
            Self::Short(len, nodes) => &mut nodes[..*len],
            Self::Long(nodes) => nodes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_are_kept_in_order() {
        let mut line = NodeLine::default();
        for number in 0..20 {
            assert!(line.iter().copied().eq((0..number).map(NodeId)));
            line.push(NodeId(number));
        }
        let mut short = NodeLine::default();
        (0..3).for_each(|number| short.push(NodeId(number)));
        for line in [&mut line, &mut short] {
            line.reverse();
            assert!(line.iter().rev().copied().eq((0..line.len() as u32).map(NodeId)));
        }
    }
}
