//! Which of some owners hold what is in the way of a claim.

use std::collections::BTreeMap;

use super::bits::Bits;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::tree::{LineKey, NodeId};
use crate::Mode;

/// Some owners with numbers, and what they hold that others wait for. Found out once for all of them, so that a claim is
/// looked up by its path.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitedHolds {
    pub(super) owners: BTreeMap<OwnerId, usize>,
    /// By where a hold is, as the lines of claims are named.
    marks: BTreeMap<LineKey, Bits>,
    /// How many awaited holds there are.
    pub(super) awaited: u64,
    /// How many owners and holds were looked at.
    pub(super) cost: u64,
}

impl AwaitedHolds {
    pub(super) fn of(namespace: &Namespace, owners: impl IntoIterator<Item = OwnerId>) -> Self {
        let mut held = Self::default();
        for owner in owners {
            let next = held.owners.len();
            let number = *held.owners.entry(owner).or_insert(next);
            let looked_at = 1 + namespace.owners.get(owner).holds.len();
            namespace.spend(looked_at);
            held.cost += looked_at as u64;
            for node in namespace.owners.get(owner).holds.iter() {
                let Some(hold) = namespace.hold(node, owner) else { continue };
                if namespace.is_awaited(node, hold.mode, owner) {
                    held.awaited += 1;
                    for key in namespace.tree.own_lines(node, hold.mode) {
                        held.marks.entry(key).or_default().insert(number);
                    }
                }
            }
        }
        held
    }

    /// Adds those whose awaited holds are in the way of the claims.
    pub(super) fn add_in_the_way<'a>(
        &self,
        namespace: &Namespace,
        claims: impl IntoIterator<Item = &'a (NodeId, Mode)>,
        to: &mut Bits,
    ) {
        for (node, mode) in claims {
            namespace.spend(1);
            for key in namespace.tree.conflicting_lines(*node, *mode) {
                if let Some(owners) = self.marks.get(&key) {
                    to.add(owners);
                }
            }
        }
    }

    /// Whose awaited holds are in the way of what the owner waits for; it may be among them itself.
    pub(super) fn ahead_of(&self, namespace: &Namespace, owner: OwnerId) -> Bits {
        let mut ahead = Bits::default();
        let mut before = None;
        for place in namespace.owners.get(owner).places() {
            let kind = &namespace.waiting(place).kind;
            if before != Some(kind) {
                self.add_in_the_way(namespace, kind.iter(), &mut ahead);
            }
            before = Some(kind);
        }
        ahead
    }
}
