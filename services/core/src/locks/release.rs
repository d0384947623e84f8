//! Releases holds and waits of one owner.

use std::collections::BTreeSet;

use super::bit_set::BitSet;
use super::end::EndCause;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId, WaitKey};
use super::queue::QueuePosition;
use super::sessions::NamedRequest;
use super::target::Target;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{CommandError, FencingToken, Owner, Path, Reason, Release, ReleaseTarget, Response, WaitId};

impl NamespaceTxn<'_> {
    /// Releases holds. Releasing a path that the owner does not hold is no error: the hold may just have ended.
    pub(super) fn release(&mut self, request: &Release) -> Result<Response, CommandError> {
        if let Owner::Session { session_id, .. } = &request.owner
            && !self.check_sequence(session_id, request.message)?
        {
            if matches!(request.what, ReleaseTarget::All) {
                let target = self.sweep_target_of(&request.owner);
                self.await_sweep(|there| *there == target);
            }
            return Ok(Response::Ignored);
        }
        let (released, paths) = match &request.what {
            ReleaseTarget::Paths { paths, fencing_token } => self.release_paths(&request.owner, paths, *fencing_token),
            ReleaseTarget::Request { request_id } => self.release_request(&request.owner, request_id),
            ReleaseTarget::All => self.release_all(&request.owner)?,
        };
        self.run_grant_loop();
        let locks = self.views(&paths.iter().collect::<Vec<_>>(), NO_OWNER, false);
        Ok(Response::Released { released, locks })
    }

    fn release_paths(&mut self, owner: &Owner, paths: &[Path], token: Option<FencingToken>) -> (bool, BTreeSet<Path>) {
        let paths: BTreeSet<Path> = paths.iter().cloned().collect();
        let mut released = false;
        for path in &paths {
            let id = self.ns.owner_id(owner);
            let Some(node) = self.ns.tree.find(path).filter(|_| id != NO_OWNER) else { continue };
            let Some(hold) = self.ns.hold(node, id).filter(|hold| !hold.is_kept()) else { continue };
            if token.is_none_or(|token| token == hold.token) {
                self.end_hold(node, id, EndCause::Released);
                released = true;
            }
        }
        (released, paths)
    }

    pub(super) fn release_request(&mut self, owner: &Owner, request_id: &str) -> (bool, BTreeSet<Path>) {
        let named = match owner {
            Owner::Session { session_id, .. } => {
                let session = self.ns.sessions.get(session_id.as_str());
                session.and_then(|session| self.ns.request_named(&session.requests, request_id))
            }
            Owner::Process(_) => {
                let key = WaitKey::Named(request_id.into());
                self.ns.find_wait(self.ns.owner_id(owner), &key).map(NamedRequest::Waiting)
            }
        };
        match named {
            None => {
                let released = self.release_named_permits(owner, request_id);
                (released || self.release_named_arrival(owner, request_id), BTreeSet::new())
            }
            Some(NamedRequest::Waiting(position)) => {
                let claims = &self.ns.waiting(position).claims;
                let shown = if self.with_views { claims.as_slice() } else { &[] };
                let paths = shown.iter().map(|claim| claim.path.clone()).collect();
                self.end_wait(position, Reason::Ended);
                (true, paths)
            }
            Some(NamedRequest::Awaiting(wait)) => {
                let shown = self.ns.conditions.get(wait).filter(|_| self.with_views);
                let paths = shown.map(|awaits| Path::clone(&awaits.path)).into_iter().collect();
                self.end_await(wait, Reason::Ended);
                (true, paths)
            }
            Some(NamedRequest::Granted(granted)) => (true, self.release_granted(granted)),
        }
    }

    /// Ends the holds of a granted request that no other unreleased request claims. Returns the paths that it claimed,
    /// if views are wanted.
    pub(super) fn release_granted(&mut self, granted: u32) -> BTreeSet<Path> {
        let nodes = self.claimed_nodes(granted);
        let shown = if self.with_views { nodes.as_slice() } else { &[] };
        let paths = shown.iter().map(|node| self.ns.tree.path_of(*node)).collect();
        self.end_claims(granted, &nodes);
        paths
    }

    /// As above, but only if all claims of the request are held, and the paths are free once it is released. Returns
    /// whether they are.
    pub(super) fn release_completely(&mut self, granted: u32) -> bool {
        let request = self.ns.granted_requests.get(granted);
        let is_only = |node: NodeId| match self.ns.tree.get(node).holds.as_slice() {
            [hold] => {
                let is_its = hold.owner == request.owner && !hold.direct && hold.requests() == [granted];
                is_its && hold.kept_after(self.common.clock_ms).is_none()
            }
            _ => false,
        };
        let frees = request.live.len() == request.claimed as usize && request.live.nodes().all(is_only);
        if frees {
            self.end_claims(granted, &self.claimed_nodes(granted));
        }
        frees
    }

    /// Returns the claimed nodes of a granted request, in path order.
    fn claimed_nodes(&self, granted: u32) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.ns.granted_requests.get(granted).live.nodes().collect();
        self.sort_by_path(&mut nodes);
        nodes
    }

    fn end_claims(&mut self, granted: u32, nodes: &[NodeId]) {
        let owner = self.ns.granted_requests.get(granted).owner;
        for node in nodes {
            let mut is_unclaimed = false;
            self.change_hold(*node, owner, |hold| is_unclaimed = hold.unclaim(granted));
            self.remove_claim(granted, *node);
            if is_unclaimed {
                self.end_hold(*node, owner, EndCause::Released);
            }
        }
    }

    /// Releases everything of an owner. If that exceeds the slice, the response contains no locks.
    fn release_all(&mut self, owner: &Owner) -> Result<(bool, BTreeSet<Path>), CommandError> {
        let session = match owner {
            Owner::Session { session_id, .. } => self.ns.sessions.get(session_id.as_str()),
            Owner::Process(_) => None,
        };
        let of_one = Some(self.ns.owner_id(owner)).filter(|owner| *owner != NO_OWNER);
        let (owners, things): (Vec<OwnerId>, usize) = match (owner, session) {
            (Owner::Session { holder: None, .. }, Some(session)) => {
                let things = usize::try_from(session.holds.saturating_add(session.waiting)).unwrap_or(usize::MAX);
                (session.owners.iter().copied().collect(), things)
            }
            _ => {
                let record = of_one.map(|owner| self.ns.owners.get(owner));
                let things = record.map_or(0, |record| record.holds.len() + record.request_count());
                (of_one.into_iter().collect(), things)
            }
        };
        let things = self.ends_of_all(things, &owners);
        let target = self.sweep_target_of(owner);
        let none = BitSet::default();
        let permits = self.count_permits(&target, &none);
        let arrivals = self.count_arrivals(&target, &none);
        if things.saturating_add(permits).saturating_add(arrivals) > self.budget.ends {
            self.begin_sweep(target)?;
            return Ok((true, BTreeSet::new()));
        }
        // Those of permits and arrivals are counted one by one.
        self.budget.ends -= things;
        let waits = self.end_waits(&owners);
        let mut holds = self.holds_of(&owners);
        holds.retain(|(_, node, owner)| self.ns.has_unreleased(*node, *owner));
        let shown = holds.iter().map(|(path, _, _)| path.clone()).collect::<BTreeSet<Path>>();
        for (_, node, owner) in &holds {
            self.end_hold(*node, *owner, EndCause::Released);
        }
        self.end_all_arrivals(&target, &none);
        self.end_all_permits(&target, &none);
        Ok((
            waits > 0 || !holds.is_empty() || permits > 0 || arrivals > 0,
            shown.into_iter().take(self.ns.bounds.max_locks_in_reply).collect(),
        ))
    }

    /// Returns the sweep target of an owner: a session without a holder stands for all of its holders.
    fn sweep_target_of(&self, owner: &Owner) -> Target {
        let session = match owner {
            Owner::Session { session_id, .. } => self.ns.sessions.get(session_id.as_str()),
            Owner::Process(_) => None,
        };
        match (owner, session) {
            (Owner::Session { holder: None, .. }, Some(session)) => Target::Session(session.facts.number),
            _ => Target::Owner(owner.clone(), session.map_or(0, |session| session.facts.number)),
        }
    }

    /// Ends all waits of some owners in queue order, and then all awaits. Returns their number.
    pub(super) fn end_waits(&mut self, owners: &[OwnerId]) -> u64 {
        let mut positions: Vec<QueuePosition> =
            owners.iter().flat_map(|owner| self.ns.owners.get(*owner).queue_positions()).collect();
        positions.sort_unstable();
        for position in &positions {
            // The end of another upgrade may have ended this one.
            if self.ns.waits.contains_key(position) {
                self.end_wait(*position, Reason::Ended);
            }
        }
        let awaits = self.awaits_of(owners);
        awaits.iter().for_each(|wait| self.end_await(*wait, Reason::Ended));
        (positions.len() + awaits.len()) as u64
    }

    /// Returns the awaits of some owners, in order of arrival.
    pub(super) fn awaits_of(&self, owners: &[OwnerId]) -> Vec<WaitId> {
        let awaits = owners.iter().filter(|owner| self.ns.owners.contains(**owner));
        let mut awaits: Vec<WaitId> = awaits.flat_map(|owner| self.ns.owners.get(*owner).await_ids()).collect();
        awaits.sort_unstable();
        awaits
    }

    /// Returns all holds of some owners, in order of path, then of grant.
    pub(super) fn holds_of(&self, owners: &[OwnerId]) -> Vec<(Path, NodeId, OwnerId)> {
        self.in_order_of_path(self.find_holds(owners, |_, _, _| true))
    }

    /// Returns those holds of some owners that are meant, in no order: to order them takes several times as long.
    pub(super) fn find_holds(
        &self,
        owners: &[OwnerId],
        is_meant: impl Fn(&Namespace, NodeId, &Hold) -> bool,
    ) -> Vec<(NodeId, OwnerId)> {
        let (ns, mut found) = (&*self.ns, Vec::new());
        for owner in owners.iter().copied().filter(|owner| ns.owners.contains(*owner)) {
            for node in ns.owners.get(owner).holds.iter() {
                if ns.hold(node, owner).is_some_and(|hold| is_meant(ns, node, hold)) {
                    found.push((node, owner));
                }
            }
        }
        found
    }

    /// Brings holds in order of path, then of grant.
    pub(super) fn in_order_of_path(&self, holds: Vec<(NodeId, OwnerId)>) -> Vec<(Path, NodeId, OwnerId)> {
        let token = |node, owner| self.ns.hold(node, owner).map_or(0, |hold| hold.token);
        let holds = holds.into_iter();
        let mut holds: Vec<_> =
            holds.map(|(node, owner)| ((self.ns.tree.path_of(node), token(node, owner)), node, owner)).collect();
        holds.sort_unstable();
        holds.into_iter().map(|((path, _), node, owner)| (path, node, owner)).collect()
    }

    pub(super) fn sort_by_path(&self, nodes: &mut [NodeId]) {
        if nodes.len() > 1 {
            nodes.sort_by_cached_key(|node| self.ns.tree.path_of(*node));
        }
    }
}
