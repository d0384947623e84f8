//! Inspects a state for tests: its size, and whether all counters and indexes are consistent.

use std::collections::{BTreeMap, BTreeSet};

use super::LocksState;
use super::bit_set::BitSet;
use super::closure::Closure;
use super::expire::{Deadline, WaitEnd};
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::sessions::{NamedRequest, Session};
use super::tree::{NodeId, ROOT};
use crate::{Durability, Mode};

/// The number of items in a locks shard besides namespaces and their events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Paths of trees, without the roots.
    pub paths: usize,
    /// Owners.
    pub owners: usize,
    /// Holds of locks, semaphores and pools, and arrivals at barriers.
    pub holds: usize,
    /// Waiting requests for all of them.
    pub waits: usize,
    /// Sessions.
    pub sessions: usize,
    /// Granted requests of sessions.
    pub requests: usize,
    /// Index entries: deadlines, ends of waits and blockers.
    pub indexed: usize,
}

impl LocksState {
    /// Returns the number of items.
    pub fn footprint(&self) -> Footprint {
        let mut all = Footprint::default();
        for slot in self.slots.values() {
            let namespace = self.namespaces.get(*slot);
            all.paths += namespace.tree.len() - 1;
            all.owners += namespace.owners.len();
            all.holds += (namespace.hold_count + namespace.permits.holds() + namespace.barriers.arrivals()) as usize;
            all.waits += namespace.waiting_count() as usize;
            all.sessions += namespace.sessions.len() + namespace.ending_sessions.len();
            all.requests += namespace.granted_requests.len();
            all.indexed += namespace.blocked_index.len() + namespace.due.holds.len() + namespace.due.waits.len();
        }
        all
    }

    /// Returns the same state with different numbers of paths, owners and requests. The behavior must not depend on
    /// them.
    pub fn renumbered(&self, seed: u64) -> Self {
        let (state, chunks) = (self.common.empty(), self.freeze().encode());
        Self::restore_numbered(state, &chunks, Some(seed)).expect("what was applied can be restored")
    }

    /// Returns the number of evaluations of waiting requests since the process started.
    pub fn requests_examined(&self) -> u64 {
        self.slots.values().map(|slot| self.namespaces.get(*slot).examined).sum()
    }

    /// Returns the units spent since the process started: visits of paths, holds, owners, claims and entries.
    pub fn units(&self) -> u64 {
        self.units.get()
    }

    /// Panics if what has come due by the clock has not ended.
    pub(crate) fn verify_clock(&self) {
        assert_eq!(self.visible_clock_ms, self.common.clock_ms);
    }

    /// Panics if a counter or an index is inconsistent.
    pub fn verify(&self) {
        let (mut first_due, mut sessions) = (0, 0);
        let mut charged = BTreeMap::new();
        for (key, slot) in &self.slots {
            let namespace = self.namespaces.get(*slot);
            let stands_still = self.is_quarantined(&namespace.id);
            namespace.now_ms.set(self.clock_of(&namespace.id));
            namespace.verify();
            namespace.verify_due(*slot, stands_still);
            assert!(namespace.first_due.is_none_or(|first| self.due.contains(&first)));
            first_due += usize::from(namespace.first_due.is_some());
            let goes_on = namespace.has_jobs() && !stands_still;
            assert_eq!(self.jobs.contains(key), goes_on, "whether something goes on is known");
            assert_eq!(namespace.accounted_bytes, namespace.state_bytes().total(), "the shard knows what is charged");
            *charged.entry(namespace.id.account).or_default() += namespace.accounted_bytes;
            for (session_id, session) in &namespace.sessions {
                assert_eq!(self.sessions.get(&session.facts.number), Some(&(*slot, session_id.clone())));
                sessions += 1;
            }
        }
        assert_eq!(charged, self.charged, "what an account is charged with is known");
        let counted = (first_due, sessions + self.stale_sessions(), self.slots.len());
        let kept = (self.due.len(), self.sessions.len(), self.namespaces.len());
        assert_eq!(counted, kept, "what is due first, sessions, namespaces");
    }
}

impl Namespace {
    pub(super) fn shuffle(&mut self, seed: u64) {
        self.tree.shuffle(seed);
        self.owners.shuffle(seed.wrapping_add(2));
        self.granted_requests.shuffle(seed.wrapping_add(3));
    }

    fn verify_due(&self, slot: u32, stands_still: bool) {
        let holds =
            self.tree.iter().flat_map(|(node, lock)| lock.holds.as_slice().iter().map(move |hold| (node, hold)));
        let mut deadlines: Vec<Deadline> = holds.filter_map(|(node, hold)| hold.deadline(node)).collect();
        deadlines.sort_unstable();
        assert!(self.due.holds.iter().eq(deadlines), "the end of every hold's present phase is known");
        let ends = self.waits.iter().filter_map(|(place, waiting)| {
            Some(WaitEnd { at_ms: waiting.ends_at_ms?, wait: place.wait().0, position: *place })
        });
        assert_eq!(self.due.waits, ends.collect(), "the end of every wait is known");
        assert_eq!(self.first_due, self.earliest_due(slot).filter(|_| !stands_still));
    }

    fn verify(&self) {
        // Scheduled requests may have become ungrantable by now: their own hold may have reached its deadline since.
        assert!(
            self.has_pending_grants || self.blocked_index.first_to_reevaluate().is_none(),
            "nobody is left to be looked at, or it is known"
        );
        let mut held: BTreeMap<OwnerId, Vec<NodeId>> = BTreeMap::new();
        let mut holds = 0;
        for (node, lock) in self.tree.iter() {
            assert!(node == ROOT || !self.tree.is_unused(node), "no path is kept for nothing");
            let spot = self.tree.lookup_node(node);
            let holds_there = lock.holds.as_slice();
            assert!(holds_there.is_sorted_by(|one, next| one.token < next.token), "holds are in order of token");
            for hold in holds_there {
                assert_eq!(self.conflict_reason(hold.owner, hold.mode, &spot), None, "no two holds conflict");
                held.entry(hold.owner).or_default().push(node);
                holds += 1;
                for request in hold.requests() {
                    assert!(self.granted_requests.get(*request).live.nodes().any(|live| live == node));
                }
            }
            self.verify_below(node);
        }
        assert_eq!(holds, self.hold_count);
        assert_eq!(self.charged, self.recount_charges(), "what there is is charged");
        let owners: u64 = self.owners.iter().map(|(owner, _)| self.owners.name(owner).charge()).sum();
        let events: u64 = self.history.iter().map(|event| event.charge()).sum();
        assert_eq!((owners, events), (self.owners.charge(), self.history.bytes()), "owners and events are charged");
        self.tree.verify_extras();
        self.latches.verify();
        self.permits.verify();
        self.barriers.verify();
        self.verify_conditions();
        for (owner, record) in self.owners.iter() {
            let mut nodes: Vec<NodeId> = record.holds.iter().collect();
            nodes.sort_unstable();
            let mut expected = held.remove(&owner).unwrap_or_default();
            expected.sort_unstable();
            assert_eq!(nodes, expected);
            assert!(!nodes.is_empty() || record.request_count() > 0, "no owner is kept for nothing");
        }
        self.verify_sessions();
        let open = self.sessions.values().map(|session| session.facts.number);
        let of_table = open.filter(|_| self.durability == Durability::Session).collect();
        self.table_log.verify(&of_table);
        self.verify_granted();
        self.verify_waits();
    }

    fn all_sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values().chain(self.ending_sessions.values().map(|ending| &ending.session))
    }

    fn verify_sessions(&self) {
        for session in self.all_sessions() {
            let owners = || session.owners.iter().map(|owner| self.owners.get(*owner));
            let is_own = |owner: &&OwnerId| self.owners.name(**owner).session().is_some_and(|it| it.holder.is_none());
            assert_eq!(session.own, session.owners.iter().find(is_own).copied().unwrap_or(NO_OWNER));
            let holds: usize = owners().map(|owner| owner.holds.len()).sum();
            let waiting: usize = owners().map(|owner| owner.request_count()).sum();
            assert_eq!(
                (session.holds, session.waiting),
                (holds as u64, waiting as u64),
                "what a session has is counted"
            );
        }
    }

    /// A snapshot takes granted requests from their slab; a restored state finds them by their sessions.
    fn verify_granted(&self) {
        for (number, granted) in self.granted_requests.iter() {
            let owner = self.owners.name(granted.owner).session().expect("only sessions name what they are granted");
            let mut sessions = self.all_sessions().filter(|session| session.facts.number == owner.number);
            let session = sessions.next().expect("a granted request has a session");
            let named = self.request_named(&session.requests, granted.request_id.as_str());
            assert_eq!(named, Some(NamedRequest::Granted(number)), "a granted request is found by its name");
            assert!(!granted.live.is_empty(), "a granted request claims something");
        }
        let named = self.all_sessions().flat_map(|session| session.requests.iter());
        let granted = named.filter(|named| matches!(named, NamedRequest::Granted(_))).count();
        assert_eq!(granted, self.granted_requests.len());
    }

    fn verify_below(&self, node: NodeId) {
        let Some(below) = self.tree.subtree(node) else { return };
        let mut counts = super::tree::SubtreeHolds::default();
        let mut open: Vec<NodeId> = self.tree.children(node).collect();
        while let Some(at) = open.pop() {
            for hold in self.tree.get(at).holds.as_slice() {
                let (any, first) = match hold.mode {
                    Mode::Read => (&mut counts.reads, &mut counts.reads_held),
                    Mode::Write => (&mut counts.writes, &mut counts.writes_held),
                };
                any.add(hold.owner);
                if hold.is_held() {
                    first.add(hold.owner);
                }
            }
            open.extend(self.tree.children(at));
        }
        assert_eq!(*below, counts);
    }

    fn verify_waits(&self) {
        assert_eq!(self.blocked_index.len(), self.waits.len());
        self.verify_closure();
        assert!(self.tangled.iter().all(|owner| self.owners.get(*owner).wait_count() > 0), "only who waits is tangled");
        let claims: usize = self.waits.values().map(|waiting| waiting.claims.len()).sum();
        assert_eq!(self.claims_waiting, claims as u64);
        for (place, waiting) in &self.waits {
            assert!(self.blocked_index.contains(waiting.blocked_on, *place));
            if self.blocked_index.must_reevaluate(waiting.blocked_on, *place) {
                continue;
            }
            assert!(self.reevaluate(*place).is_some(), "whoever can be granted was granted");
            assert!(self.is_blocked_on(*place, waiting.blocked_on), "everybody who waits watches what is in the way");
            for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
                assert_eq!(self.tree.find(&claim.path), Some(*node));
            }
        }
    }

    /// Checks that the closure equals a rebuilt one, and that the set of tangled owners is complete.
    fn verify_closure(&self) {
        assert!(!self.closure_is_stale, "who waits for whom is known");
        for (owner, awaited) in self.awaited.iter() {
            assert_eq!(awaited, &self.find_awaited(owner), "what others wait for is known");
        }
        let (kept, anew) = (&self.closure, Closure::of(self));
        for (owner, number) in &anew.owners {
            let names = |closure: &Closure, bits: &BitSet| -> BTreeSet<OwnerId> {
                closure.owners.iter().filter(|(_, number)| bits.contains(**number)).map(|(owner, _)| *owner).collect()
            };
            let before = kept.number(*owner).map(|number| names(kept, &kept.blockers[number]));
            assert_eq!(before, Some(names(&anew, &anew.blockers[*number])), "who waits for whom is kept");
        }
        for (owner, record) in self.owners.iter().filter(|(_, record)| record.wait_count() > 0) {
            let is_tangled = record.wait_count() > 1 || self.has_awaited_hold(owner);
            assert!(!is_tangled || self.tangled.contains(&owner), "whoever waits and is waited for is known");
            assert_eq!(record.holds.len() > 0, self.waiting_holders.contains(&owner));
        }
        let holds: usize = self.waiting_holders.iter().map(|owner| self.owners.get(*owner).holds.len()).sum();
        assert_eq!(self.holds_of_waiting, holds as u64);
        let positions: BTreeSet<QueuePosition> = self.by_claim_set.values().flatten().copied().collect();
        assert!(positions.iter().eq(self.waits.keys()), "every request is of a kind");
        for (place, waiting) in &self.waits {
            let is_first = self.by_claim_set[&waiting.claim_set].first() == Some(place);
            for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
                for key in self.tree.own_queue_keys(*node, claim.mode) {
                    let line = self.tree.claim_queue(key).expect("it has the claim");
                    assert_eq!(line.is_first_of_set(*place), is_first, "the first of each kind is known");
                }
            }
        }
    }
}
