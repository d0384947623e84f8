//! Checks for tests whether all counters and indexes are consistent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::key::Scope;
use super::source::Source;
use super::{HoldOrWait, Load, PermitTable};
use crate::item_bytes::ItemBytes;
use crate::{Kind, Wanted};

impl PermitTable {
    /// Panics if a counter or an index is inconsistent.
    pub fn verify(&self) {
        let (mut bytes, mut holds) = (ItemBytes::default(), 0);
        let (mut due, mut waits) = (BTreeSet::new(), BTreeSet::new());
        let mut rests = BTreeSet::new();
        let (mut spots, mut of_sessions, mut of_processes) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (name, source) in &self.by_name {
            source.verify();
            bytes += source.bytes(&name.path);
            holds += source.holds.len() as u64;
            for (member, facts) in source.members().into_iter().flat_map(super::members::Members::iter) {
                rests.extend(facts.rest().map(|(at_ms, since)| (at_ms, since, Arc::clone(name), Arc::clone(member))));
            }
            for hold in source.holds.values() {
                bytes += hold.bytes();
                due.extend(hold.due());
                assert!(spots.insert(hold.key.clone(), HoldOrWait::Hold(hold.token)).is_none(), "a key has one hold");
            }
            for (rank, wait) in &source.queue {
                bytes += wait.bytes();
                due.extend(wait.due(*rank));
                waits.insert(rank.wait);
                assert!(spots.insert(wait.key.clone(), HoldOrWait::Wait(*rank)).is_none(), "a key waits once");
            }
            let is_settled = !self.unsettled.contains(name);
            let shrinks = !is_enabled(Mutation::SemShrinkStuck);
            assert!(!is_settled || !source.is_unsettled() || !shrinks, "who can be granted was granted");
            let is_used = !source.holds.is_empty() || !source.queue.is_empty();
            assert!(is_used || source.is_configured() || source.deleting.is_some(), "none is kept for nothing");
        }
        for (key, entry) in &spots {
            match &key.scope {
                Scope::Session { number, .. } => {
                    let load = of_sessions.entry(*number).or_insert_with(Load::default);
                    load.add(*entry, self.ends_of(key, *entry) as u64);
                }
                Scope::Process(process_id) => assert!(of_processes.insert((Arc::clone(process_id), entry.since()))),
            }
        }
        assert_eq!((bytes, holds), (self.bytes, self.holds), "what there is is charged and counted");
        assert_eq!(spots, self.index, "where everything is is known");
        assert_eq!(of_sessions, self.of_sessions, "what each session has is counted");
        assert_eq!(of_processes, self.of_processes, "how old what each process has is is known");
        assert!(due.iter().eq(self.due.keys()), "when everything is due is known");
        assert!(waits.iter().eq(self.waits.keys()), "the order of arrival is known");
        assert_eq!(rests, self.rests, "who rests is known");
        let pools = self.by_name.keys().filter(|name| name.kind == Kind::Pool).count();
        assert_eq!(pools, self.pools, "pools are counted");
        assert!(self.unsettled.iter().all(|name| self.by_name.contains_key(name)));
    }
}

impl Source {
    fn verify(&self) {
        assert_eq!(self.in_use, self.holds.values().map(|hold| hold.weight).sum::<u64>());
        let heaviest: BTreeSet<_> = self.holds.values().map(|hold| (hold.weight, Reverse(hold.token))).collect();
        assert_eq!(heaviest, self.heaviest);
        let counting = self.queue.iter().filter(|(_, wait)| !matches!(wait.wanted, Wanted::Member(_)));
        let weights: BTreeSet<_> = counting.map(|(rank, wait)| (wait.wanted.weight(), *rank)).collect();
        assert_eq!(weights, self.weights);
        assert!(self.ranks.iter().eq(self.queue.keys().copied()), "the ranks are those of the queue");
        let Some(members) = self.members() else { return };
        let rebuilt = members.rebuilt(self.queue.iter().map(|(rank, wait)| (*rank, &wait.wanted)));
        assert_eq!(rebuilt, *members, "who is free and who waits for what is known");
        assert!(members.iter().all(|(_, member)| !member.is_leaving || member.hold.is_some()), "who is free is gone");
        let held = members.iter().filter_map(|(name, member)| Some((Arc::clone(name), member.hold?)));
        let leases = self.holds.values().flat_map(|hold| hold.members().iter().map(|it| (Arc::clone(it), hold.token)));
        let (held, leases): (Vec<_>, Vec<_>) = (held.collect(), leases.collect());
        assert_eq!(leases.len(), held.len(), "a member is in one hold");
        assert_eq!(leases.into_iter().collect::<BTreeSet<_>>(), held.into_iter().collect());
        assert!(self.holds.values().all(|hold| hold.weight == hold.members().len() as u64 && hold.weight > 0));
    }
}
