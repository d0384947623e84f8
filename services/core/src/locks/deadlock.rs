//! Detects whether a wait would close a cycle, and through which owners.
//!
//! Only holds count. A queued request closes no cycle: if a cycle contains a request that waits behind another in the
//! queue, it overtakes, because the earlier one waits for it. So only an owner that both waits and holds can close a
//! cycle.

use std::collections::BTreeMap;

use super::awaited_holds::AwaitedHolds;
use super::bit_set::BitSet;
use super::evaluate::Evaluation;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::tree::{NodeId, PathLookup};
use crate::{CycleStep, Mode, Path};

/// The owners that wait for one owner because of holds.
struct CycleSearch<'a> {
    namespace: &'a Namespace,
    owner: OwnerId,
    awaited_holds: AwaitedHolds,
    /// By number: the distance to the owner in edges, if it is reachable.
    distances: Vec<Option<usize>>,
}

impl Namespace {
    /// Returns the cycle that waiting would close: from the first holder that blocks the request back to the owner of
    /// the request. A cycle exists if that holder waits for the owner, directly or through others. The steps are
    /// omitted unless `shows`.
    pub(super) fn detect_deadlock(&self, asked: &Evaluation<'_>, shows: bool) -> Option<Vec<CycleStep>> {
        let owner = asked.owner;
        if owner == NO_OWNER || self.waiting_holders.is_empty() || !self.has_awaited_hold(owner) {
            return None;
        }
        let ring = CycleSearch::new(self, owner);
        let mut reach: BTreeMap<OwnerId, bool> = BTreeMap::new();
        let first = asked.claims.iter().zip(&asked.lookups).find_map(|(claim, spot)| {
            let mut closing: Vec<(OwnerId, NodeId)> = self.blocking_waiting_holders((owner, claim.mode, spot));
            closing.retain(|(other, _)| *reach.entry(*other).or_insert_with(|| ring.distance_of(*other).is_some()));
            let nearness =
                |node: NodeId| (spot.node() != Some(node), spot.ancestry.contains(&node), self.tree.path_of(node));
            let order = |(other, node): &(OwnerId, NodeId)| {
                let (is_elsewhere, is_above, path) = nearness(*node);
                let token = self.hold(*node, *other).map(|hold| hold.token);
                (is_elsewhere, !is_above, path, token)
            };
            closing.into_iter().min_by_key(order)
        });
        first.map(|(other, node)| if shows { ring.cycle_from(other, node) } else { Vec::new() })
    }

    /// Returns the holds that block a claim and whose owners wait themselves.
    pub(super) fn blocking_waiting_holders(
        &self,
        (owner, mode, spot): (OwnerId, Mode, &PathLookup),
    ) -> Vec<(OwnerId, NodeId)> {
        let waits = |other: OwnerId| self.owners.get(other).wait_count() > 0;
        let mut found = Vec::new();
        for node in spot.ancestry.iter() {
            self.spend(1);
            let holds = self.conflicting_holds_at(*node, owner, mode);
            let holds = holds.filter(|hold| waits(hold.owner) && !hold.is_kept());
            found.extend(holds.map(|hold| (hold.owner, *node)));
        }
        let Some(node) = spot.node().filter(|node| self.subtree_conflict(*node, owner, mode).is_some()) else {
            return found;
        };
        for other in self.waiting_holders.iter().filter(|other| **other != owner) {
            self.spend(1 + self.owners.get(*other).holds.len());
            let under = self.owners.get(*other).holds.iter().filter(|at| self.is_descendant(*at, node));
            let is_kept = |at: &NodeId| self.hold(*at, *other).is_some_and(Hold::is_kept);
            let excludes = |at: &NodeId| !is_kept(at) && (mode == Mode::Write || self.holds_write(*at, *other));
            found.extend(under.filter(excludes).map(|at| (*other, at)));
        }
        found
    }

    fn is_descendant(&self, node: NodeId, above: NodeId) -> bool {
        self.tree.self_and_ancestors(node).skip(1).any(|at| at == above)
    }

    fn holds_write(&self, node: NodeId, owner: OwnerId) -> bool {
        self.hold(node, owner).is_some_and(|hold| hold.mode == Mode::Write)
    }
}

impl<'a> CycleSearch<'a> {
    fn new(namespace: &'a Namespace, owner: OwnerId) -> Self {
        let awaited_holds = AwaitedHolds::of(namespace, namespace.tangled.iter().copied().chain([owner]));
        let ahead: Vec<(usize, BitSet)> = awaited_holds
            .owners
            .iter()
            .map(|(other, number)| (*number, awaited_holds.blockers_of(namespace, *other)))
            .collect();
        let mut distances = vec![None; ahead.len()];
        let mut layer = BitSet::of(awaited_holds.owners[&owner]);
        let mut distance = 0;
        while !layer.is_empty() {
            layer.iter().for_each(|number| distances[number] = Some(distance));
            distance += 1;
            let mut next = BitSet::default();
            for (number, ahead) in &ahead {
                if distances[*number].is_none() && ahead.intersects(&layer) {
                    next.insert(*number);
                }
            }
            layer = next;
        }
        Self { namespace, owner, awaited_holds, distances }
    }

    /// Returns the distance of a waiting owner to the owner.
    fn distance_of(&self, other: OwnerId) -> Option<usize> {
        if let Some(number) = self.awaited_holds.owners.get(&other) {
            return self.distances[*number];
        }
        let nearest = self
            .awaited_holds
            .blockers_of(self.namespace, other)
            .iter()
            .filter_map(|number| self.distances[number])
            .min();
        nearest.map(|distance| distance + 1)
    }

    /// Returns the path from a blocking holder to the owner. Each step goes to one of the owners nearest to it, by
    /// name.
    fn cycle_from(&self, first: OwnerId, node: NodeId) -> Vec<CycleStep> {
        let namespace = self.namespace;
        let mut cycle = vec![self.cycle_step(first, namespace.tree.path_of(node))];
        let mut at = first;
        while at != self.owner && cycle.len() < namespace.bounds.max_cycle_in_reply {
            let ahead = self.awaited_holds.blockers_of(namespace, at);
            let near = self.awaited_holds.owners.iter().filter(|(_, number)| ahead.contains(**number));
            let near = near.filter_map(|(other, number)| Some((self.distances[*number]?, *other)));
            let near = near.filter(|(_, other)| *other != at);
            let Some((_, next)) =
                near.min_by_key(|(distance, other)| (*distance, namespace.owners.name(*other).to_owner()))
            else {
                break;
            };
            let Some(path) = self.first_blocking_path(at, next) else { break };
            cycle.push(self.cycle_step(next, path));
            at = next;
        }
        cycle
    }

    /// Returns the first path that one owner holds and the other waits for.
    fn first_blocking_path(&self, waiting: OwnerId, holding: OwnerId) -> Option<Path> {
        let namespace = self.namespace;
        let claims: Vec<(NodeId, Mode)> = namespace
            .owners
            .get(waiting)
            .queue_positions()
            .flat_map(|position| namespace.waiting(position).claim_set.iter().copied())
            .collect();
        let is_in_the_way = |node: &NodeId| {
            let writes = namespace.holds_write(*node, holding);
            let is_kept = namespace.hold(*node, holding).is_some_and(Hold::is_kept);
            !is_kept
                && claims.iter().any(|(claimed, mode)| {
                    (writes || *mode == Mode::Write)
                        && (claimed == node
                            || namespace.is_descendant(*node, *claimed)
                            || namespace.is_descendant(*claimed, *node))
                })
        };
        let nodes = namespace.owners.get(holding).holds.iter().filter(is_in_the_way);
        nodes.map(|node| namespace.tree.path_of(node)).min()
    }

    fn cycle_step(&self, owner: OwnerId, path: Path) -> CycleStep {
        let owner = self.namespace.owners.name(owner);
        CycleStep { owner: owner.to_owner(), process_id: owner.process_id().to_owned(), path, waiting: false }
    }
}
