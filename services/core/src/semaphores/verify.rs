//! Checks for tests whether all counters and indexes are consistent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::key::Scope;
use super::{HoldOrWait, Semaphore, Semaphores};

impl Semaphores {
    /// Panics if a counter or an index is inconsistent.
    pub(crate) fn verify(&self) {
        let (mut bytes, mut holds, mut due, mut waits) = (0, 0, BTreeSet::new(), BTreeSet::new());
        let (mut spots, mut of_sessions, mut of_processes) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (path, semaphore) in &self.by_path {
            semaphore.verify();
            bytes += semaphore.charge(path);
            holds += semaphore.holds.len() as u64;
            for hold in semaphore.holds.values() {
                bytes += hold.charge();
                due.extend(hold.due());
                assert!(spots.insert(hold.key.clone(), HoldOrWait::Hold(hold.token)).is_none(), "a key has one hold");
            }
            for (rank, wait) in &semaphore.queue {
                bytes += wait.charge();
                due.extend(wait.due(*rank));
                waits.insert(rank.wait);
                assert!(spots.insert(wait.key.clone(), HoldOrWait::Wait(*rank)).is_none(), "a key waits once");
            }
            let is_settled = !self.unsettled.contains(path) && semaphore.deleting.is_none();
            let first = semaphore.queue.first_key_value().filter(|_| is_settled);
            assert!(first.is_none_or(|(_, wait)| !semaphore.fits(wait.weight)), "who can be granted was granted");
            let is_used = !semaphore.holds.is_empty() || !semaphore.queue.is_empty();
            assert!(
                is_used || semaphore.is_configured || semaphore.deleting.is_some(),
                "no semaphore is kept for nothing"
            );
        }
        for (key, entry) in &spots {
            match &key.scope {
                Scope::Session { number, .. } => *of_sessions.entry(*number).or_insert(0_u64) += 1,
                Scope::Process(process_id) => assert!(of_processes.insert((Arc::clone(process_id), entry.since()))),
            }
        }
        assert_eq!((bytes, holds), (self.bytes, self.holds), "what there is is charged and counted");
        assert_eq!(spots, self.index, "where everything is is known");
        assert_eq!(of_sessions, self.of_sessions, "what each session has is counted");
        assert_eq!(of_processes, self.of_processes, "how old what each process has is is known");
        assert!(due.iter().eq(self.due.keys()), "when everything is due is known");
        assert!(waits.iter().eq(self.waits.keys()), "the order of arrival is known");
        assert!(self.unsettled.iter().all(|path| self.by_path.contains_key(path)));
    }
}

impl Semaphore {
    fn verify(&self) {
        assert_eq!(self.in_use, self.holds.values().map(|hold| hold.weight).sum::<u64>());
        let heaviest: BTreeSet<_> = self.holds.values().map(|hold| (hold.weight, Reverse(hold.token))).collect();
        assert_eq!(heaviest, self.heaviest);
        let weights: BTreeSet<_> = self.queue.iter().map(|(rank, wait)| (wait.weight, *rank)).collect();
        assert_eq!(weights, self.weights);
    }
}
