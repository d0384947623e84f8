//! What a leader has to know of the sessions of a lock table in its memory.

use super::TableLog;
use crate::{FencingToken, Path, SessionNumber};

impl TableLog {
    /// Returns the sessions of before the epoch that may still hold something, in order of opening.
    pub(in crate::locks) fn earlier_sessions(&self) -> impl Iterator<Item = SessionNumber> {
        self.sessions.range(..self.epoch).map(|(number, _)| *number)
    }

    /// Returns whether a session may hold something of an earlier epoch.
    pub(in crate::locks) fn is_earlier(&self, number: SessionNumber) -> bool {
        number < self.epoch
    }

    /// Returns whether a session is open, or its transition is not over.
    pub(in crate::locks) fn may_hold(&self, number: SessionNumber) -> bool {
        self.sessions.contains_key(&number)
    }

    /// Returns how long the holds of a session stay in transition if it expires, in milliseconds; `None` for a session
    /// that holds nothing.
    pub(in crate::locks) fn transition_ms(&self, number: SessionNumber) -> Option<u64> {
        self.sessions.get(&number).map(|session| session.transition_ms.into())
    }

    /// Returns whether a claim of an open session was ended by force.
    pub(in crate::locks) fn is_forfeit(&self, number: SessionNumber, path: &Path, token: FencingToken) -> bool {
        self.sessions.get(&number).is_some_and(|session| session.is_forfeit(path, token))
    }
}
