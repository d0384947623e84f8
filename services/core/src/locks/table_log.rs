//! The log's record of a lock table in the memory of its shard's leader: the latest epoch, the sessions that may hold
//! something, and the claims that were ended by force.
//!
//! Numbers of sessions rise with the log. So the sessions below the epoch are the earlier ones, whichever leader
//! granted their holds.

mod earlier;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use holdfast_mutations::{Mutation, is_enabled};
use serde::{Deserialize, Serialize};

use super::charge;
use crate::{FencingToken, ForfeitedHold, Path, Revision, SessionEnd, SessionNumber, TABLE_SESSION_TTL_MS};

/// The log of one lock table. Empty if the table itself is in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableLog {
    /// The epoch that was begun for it last; 0 before the first.
    pub(super) epoch: Revision,
    /// Open sessions, and ended ones until their transition is over.
    sessions: BTreeMap<SessionNumber, TableSession>,
    /// The ended ones, by the end of their transition.
    ends: BTreeSet<(u64, SessionNumber)>,
    /// The number of claims that were ended by force.
    forfeits: u64,
    /// Their charge in bytes.
    forfeit_bytes: u64,
}

/// A session that may hold something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TableSession {
    /// How long its holds stay in transition if it expires, in milliseconds.
    transition_ms: u32,
    /// The shard clock at which its transition is over, once it has expired.
    ends_at_ms: Option<u64>,
    /// Its claims that were ended by force. The claims of one request share their token: only the path tells which.
    forfeits: BTreeSet<(FencingToken, Path)>,
}

impl TableSession {
    /// Returns whether its claim of a path was ended by force.
    fn is_forfeit(&self, path: &Path, token: FencingToken) -> bool {
        !self.forfeits.is_empty() && self.forfeits.contains(&(token, path.clone()))
    }

    /// Returns the item with all instants later by a time.
    pub(super) fn delayed(mut self, by_ms: u64) -> Self {
        self.ends_at_ms = self.ends_at_ms.map(|at_ms| at_ms.saturating_add(by_ms));
        self
    }
}

impl TableLog {
    /// Records a new session. An opening that is repeated changes nothing.
    pub(super) fn opened(&mut self, number: SessionNumber, transition_ms: u64) {
        let transition_ms = u32::try_from(transition_ms).unwrap_or(u32::MAX);
        self.sessions.entry(number).or_insert_with(|| TableSession { transition_ms, ..TableSession::default() });
    }

    /// Records that a session ended. An expired session counts until its transition is over.
    pub(super) fn ended(&mut self, number: SessionNumber, why: SessionEnd, clock_ms: u64) {
        let Some(mut session) = self.sessions.remove(&number) else { return };
        let forfeits = std::mem::take(&mut session.forfeits);
        self.forfeits -= forfeits.len() as u64;
        self.forfeit_bytes -= bytes_of(&forfeits);
        let is_skipped = is_enabled(Mutation::SoftTransitionSkipped);
        if why == SessionEnd::Expired && session.transition_ms > 0 && !is_skipped {
            let ends_at_ms = clock_ms.saturating_add(session.transition_ms.into());
            session.ends_at_ms = Some(ends_at_ms);
            self.ends.insert((ends_at_ms, number));
            self.sessions.insert(number, session);
        }
    }

    /// Records that sessions unknown to the log may hold something. They count as one session that lives for the
    /// longest time to live from now on, and has the longest transition of the known sessions.
    pub(super) fn lost_sessions(&mut self, number: SessionNumber, clock_ms: u64) {
        let (_, longest_ttl_ms) = TABLE_SESSION_TTL_MS;
        let transition_ms = self.sessions.values().map(|session| session.transition_ms).max().unwrap_or_default();
        let ends_at_ms = clock_ms.saturating_add(longest_ttl_ms).saturating_add(transition_ms.into());
        self.ends.insert((ends_at_ms, number));
        let forfeits = BTreeSet::new();
        self.sessions.insert(number, TableSession { transition_ms, ends_at_ms: Some(ends_at_ms), forfeits });
    }

    /// Returns when the first transition of an ended session is over, and its number.
    pub(super) fn first_due(&self) -> Option<(u64, SessionNumber)> {
        self.ends.first().copied()
    }

    /// Forgets the ended session whose transition is over first.
    pub(super) fn end_first_due(&mut self) {
        if let Some((_, number)) = self.ends.pop_first() {
            self.sessions.remove(&number);
        }
    }

    /// Forgets the ended sessions, those below a number if one is given, whatever is left of their transition.
    pub(super) fn remove_ended(&mut self, below: Option<SessionNumber>) {
        let goes = |(_, number): &(u64, SessionNumber)| below.is_none_or(|below| *number < below);
        let (gone, kept): (BTreeSet<_>, BTreeSet<_>) = std::mem::take(&mut self.ends).into_iter().partition(goes);
        self.ends = kept;
        for (_, number) in gone {
            self.sessions.remove(&number);
        }
    }

    /// Returns the number of ended sessions whose transition is not over.
    pub(super) fn ended_count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Returns the number of claims that were ended by force.
    pub(super) fn forfeit_count(&self) -> u64 {
        self.forfeits
    }

    /// Returns the holds whose sessions are open and that have not been ended by force before.
    pub(super) fn new_forfeits(&self, path: &Path, holds: &[ForfeitedHold]) -> BTreeSet<ForfeitedHold> {
        let is_new = |hold: &&ForfeitedHold| {
            let session = self.sessions.get(&hold.session).filter(|session| session.ends_at_ms.is_none());
            session.is_some_and(|session| !session.is_forfeit(path, hold.fencing_token))
        };
        holds.iter().filter(is_new).copied().collect()
    }

    /// Records claims of a path that ended by force.
    pub(super) fn forfeit(&mut self, path: &Path, holds: &BTreeSet<ForfeitedHold>) {
        for hold in holds {
            let session = self.sessions.get_mut(&hold.session);
            if session.is_some_and(|session| session.forfeits.insert((hold.fencing_token, path.clone()))) {
                self.forfeits += 1;
                self.forfeit_bytes += charge::forfeit(path);
            }
        }
    }

    /// Returns its charge in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.sessions.len() as u64 * charge::TABLE_SESSION + self.forfeit_bytes
    }

    /// Returns the sessions, for a snapshot.
    pub(super) fn sessions(&self) -> &BTreeMap<SessionNumber, TableSession> {
        &self.sessions
    }

    /// Restores a session of a snapshot. Returns false if it comes twice, is from the future, or is open in only one of
    /// the two lists.
    pub(super) fn restore(
        &mut self,
        number: SessionNumber,
        session: TableSession,
        now: Revision,
        is_open: bool,
    ) -> bool {
        let tokens = session.forfeits.last().map_or(0, |(token, _)| *token);
        let fits = number <= now && tokens <= now && is_open == session.ends_at_ms.is_none();
        if !fits || (!is_open && !session.forfeits.is_empty()) || self.sessions.contains_key(&number) {
            return false;
        }
        self.forfeits += session.forfeits.len() as u64;
        self.forfeit_bytes += bytes_of(&session.forfeits);
        self.ends.extend(session.ends_at_ms.map(|at_ms| (at_ms, number)));
        self.sessions.insert(number, session);
        true
    }
}

fn bytes_of(forfeits: &BTreeSet<(FencingToken, Path)>) -> u64 {
    forfeits.iter().map(|(_, path)| charge::forfeit(path)).sum()
}
