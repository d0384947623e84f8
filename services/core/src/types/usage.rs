//! What accounts use, for their owners and for billing.

use serde::{Deserialize, Serialize};

use super::Incarnation;

/// What was done in a namespace since it was made, and the most that there was at once. Counted by the commands that
/// are logged anyway: no count costs a log entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Commands of callers: acquires, releases, forced deletions, resets, and sessions opened and closed.
    pub operations: u64,
    /// Holds that were granted, at once or after a wait; extensions are none.
    pub grants: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Sessions that were opened.
    pub sessions_opened: u64,
    /// The most holds at once, in any state.
    pub peak_holds: u64,
    /// The most waiting requests at once.
    pub peak_waiting: u64,
    /// The most sessions at once.
    pub peak_sessions: u64,
}

impl UsageTotals {
    /// Takes over what was counted elsewhere: what was done adds up, and of the peaks the higher one stays.
    pub fn add(&mut self, other: &Self) {
        self.operations = self.operations.saturating_add(other.operations);
        self.grants = self.grants.saturating_add(other.grants);
        self.waits = self.waits.saturating_add(other.waits);
        self.sessions_opened = self.sessions_opened.saturating_add(other.sessions_opened);
        self.peak_holds = self.peak_holds.max(other.peak_holds);
        self.peak_waiting = self.peak_waiting.max(other.peak_waiting);
        self.peak_sessions = self.peak_sessions.max(other.peak_sessions);
    }
}

/// What a namespace is charged with by the bytes that a locks shard keeps of it, by kind: an upper bound of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateBytes {
    /// The namespace itself.
    pub namespace: u64,
    /// Paths that somebody holds or awaits, or that are above these.
    pub paths: u64,
    /// Owners that hold or await something.
    pub owners: u64,
    /// Holds.
    pub holds: u64,
    /// Metadata of holds.
    pub metadata: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Granted requests of sessions that have an id.
    pub requests: u64,
    /// Sessions.
    pub sessions: u64,
    /// Events.
    pub events: u64,
}

impl StateBytes {
    /// All together.
    pub fn total(&self) -> u64 {
        let Self { namespace, paths, owners, holds, metadata, waiting, requests, sessions, events } = *self;
        namespace + paths + owners + holds + metadata + waiting + requests + sessions + events
    }

    /// Adds what another namespace is charged with.
    pub fn add(&mut self, other: &Self) {
        self.namespace += other.namespace;
        self.paths += other.paths;
        self.owners += other.owners;
        self.holds += other.holds;
        self.metadata += other.metadata;
        self.waiting += other.waiting;
        self.requests += other.requests;
        self.sessions += other.sessions;
        self.events += other.events;
    }
}

/// What one open namespace uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceUsage {
    /// Its name.
    pub name: String,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Holds now, in any state.
    pub holds: u64,
    /// Waiting requests now.
    pub waiting: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Since it was made.
    pub totals: UsageTotals,
}
