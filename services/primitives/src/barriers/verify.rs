//! Checks for tests whether all counters and indexes are consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::barrier::{Barrier, Roster};
use super::{Barriers, DueThing, charge};
use crate::item_bytes::ItemBytes;
use crate::permits::Scope;

impl Barriers {
    /// Panics if a counter or an index is inconsistent.
    pub fn verify(&self) {
        let (mut index, mut requests, mut due) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut bytes = ItemBytes::default();
        let (mut of_sessions, mut of_processes) = (BTreeMap::new(), BTreeSet::new());
        for (path, barrier) in &self.by_path {
            barrier.verify();
            bytes += barrier.bytes(path);
            due.extend(barrier.due().map(|due| (due, DueThing::Barrier(Arc::clone(path)))));
            for arrival in barrier.arrivals() {
                let key = &arrival.key;
                assert!(Arc::ptr_eq(&key.path, path), "paths are shared");
                assert!(index.insert(key.clone(), arrival.number).is_none(), "an owner has arrived once");
                due.extend(arrival.due().map(|due| (due, DueThing::Arrival(key.clone()))));
                match &key.party.scope {
                    Scope::Process(process_id) => {
                        assert!(of_processes.insert((Arc::clone(process_id), arrival.number)));
                    }
                    Scope::Session { number, .. } => {
                        *of_sessions.entry(*number).or_insert(0) += 1;
                        let request = arrival.request_id.as_ref().map(|id| ((*number, Arc::clone(id)), key.clone()));
                        requests.extend(request);
                    }
                }
            }
        }
        assert_eq!(bytes, self.bytes, "what there is is charged");
        assert_eq!(index, self.index, "where everybody is is known");
        assert_eq!(requests, self.requests, "requests of sessions are known");
        assert_eq!(due, self.due, "when everything is due is known");
        assert_eq!(of_sessions, self.of_sessions, "what each session has is counted");
        assert_eq!(of_processes, self.of_processes, "how old what each process has is is known");
    }
}

impl Barrier {
    fn verify(&self) {
        assert_eq!(self.check().map_err(|error| error.to_string()), Ok(()));
        let deadlines: BTreeSet<_> = self.arrivals().filter_map(|arrival| arrival.due()).collect();
        assert_eq!(deadlines, self.deadlines, "when each arrival ends is known");
        let bytes: ItemBytes = self.gathered.values().map(|arrival| charge::gathered(arrival)).sum();
        assert_eq!(bytes, self.gathered_bytes, "arrivals are charged");
        self.last.iter().for_each(|roster| roster.verify());
        let Some(inside) = &self.inside else { return };
        inside.roster.verify();
        let arrivals: ItemBytes = inside.arrivals.values().map(|arrival| charge::inside(arrival)).sum();
        let leaving: ItemBytes = inside.leaving.iter().map(|_| charge::LEAVING).sum();
        assert_eq!(arrivals + leaving, inside.bytes, "those inside are charged");
    }
}

impl Roster {
    fn verify(&self) {
        let bytes: ItemBytes =
            self.members.iter().map(|(party, it)| charge::of_member(party, it.request_id.as_deref())).sum();
        assert_eq!(bytes, self.bytes, "those of a generation are charged");
        let indexes: BTreeSet<u32> = self.members.values().map(|member| member.index).collect();
        assert_eq!(indexes.len(), self.members.len(), "each has an index of its own");
    }
}
