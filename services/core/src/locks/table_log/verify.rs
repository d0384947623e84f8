//! Checks the log of a lock table, for tests.

use std::collections::BTreeSet;

use super::{TableLog, bytes_of};
use crate::SessionNumber;

impl TableLog {
    /// Panics if a counter or an index is inconsistent, given the open sessions.
    pub(in crate::locks) fn verify(&self, open: &BTreeSet<SessionNumber>) {
        let ended = self.sessions.iter().filter_map(|(number, session)| Some((session.ends_at_ms?, *number)));
        assert_eq!(self.ends, ended.collect(), "the end of every transition is known");
        let forfeits: usize = self.sessions.values().map(|session| session.forfeits.len()).sum();
        assert_eq!(self.forfeits, forfeits as u64, "claims that were ended by force are counted");
        let bytes: u64 = self.sessions.values().map(|session| bytes_of(&session.forfeits)).sum();
        assert_eq!(self.forfeit_bytes, bytes, "claims that were ended by force are charged");
        let live = self.sessions.iter().filter(|(_, session)| session.ends_at_ms.is_none());
        assert_eq!(live.map(|(number, _)| *number).collect::<BTreeSet<_>>(), *open, "every open session may hold");
    }
}
