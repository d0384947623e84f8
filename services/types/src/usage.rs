//! Usage of accounts, for their owners and for billing.

use serde::{Deserialize, Serialize};

use super::Incarnation;

/// Counters of a namespace since its creation, and its peaks. Logged commands update them, so no count costs a log
/// entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Commands of callers: acquires, releases, forced deletions, resets, and sessions opened and closed.
    pub operations: u64,
    /// Granted holds, immediate or after a wait; extensions do not count.
    pub grants: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Opened sessions.
    pub sessions_opened: u64,
    /// Peak number of holds, in any phase.
    pub peak_holds: u64,
    /// Peak number of waiting requests.
    pub peak_waiting: u64,
    /// Peak number of sessions.
    pub peak_sessions: u64,
}

impl UsageTotals {
    /// Adds other totals: sums counters, and takes the maximum of peaks.
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

/// The charge of a namespace for its state in a locks shard, in bytes by kind: an upper bound of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateBytes {
    /// The namespace itself.
    pub namespace: u64,
    /// Paths with holds or waiting claims, and their ancestors.
    pub paths: u64,
    /// Owners that hold or wait.
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
    /// Latches, with the jobs that are done.
    pub latches: u64,
    /// Semaphores and pools, with their members, holds and waiting requests.
    pub semaphores: u64,
    /// Barriers, with their arrivals and the latest generations.
    pub barriers: u64,
    /// Owners that await conditions, with what their waits for the locks take.
    pub conditions: u64,
}

impl StateBytes {
    /// Returns the sum.
    pub fn total(&self) -> u64 {
        let Self { namespace, paths, owners, holds, metadata, waiting, requests, sessions, events, .. } = *self;
        let of_locks = namespace + paths + owners + holds + metadata + waiting + requests + sessions + events;
        of_locks + self.latches + self.semaphores + self.barriers + self.conditions
    }

    /// Adds the charges of another namespace.
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
        self.latches += other.latches;
        self.semaphores += other.semaphores;
        self.barriers += other.barriers;
        self.conditions += other.conditions;
    }
}

/// The usage of one open namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceUsage {
    /// Its name.
    pub name: String,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Current holds, in any phase.
    pub holds: u64,
    /// Current waiting requests.
    pub waiting: u64,
    /// Current sessions.
    pub sessions: u64,
    /// Owners that wait and may be waited for: at least as many as are tangled.
    pub tangled_owners: u64,
    /// Current latches, in any status.
    pub latches: u64,
    /// Current semaphores, configured or not.
    pub semaphores: u64,
    /// Current holds of semaphores and pools, in any phase.
    pub permit_holds: u64,
    /// Current requests that wait for permits or members.
    pub permit_waits: u64,
    /// Current pools.
    pub pools: u64,
    /// Bytes of latches, semaphores and pools as they count against their limit.
    pub table_bytes: u64,
    /// Current barriers, configured or not.
    pub barriers: u64,
    /// Current arrivals at barriers, those inside double ones included.
    pub arrivals: u64,
    /// Current owners that await conditions.
    pub awaiting: u64,
    /// The totals since its creation.
    pub totals: UsageTotals,
}
