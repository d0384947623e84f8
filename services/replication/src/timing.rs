//! The timing of every group of a node: one measured choice, made once for all. Nodes of different releases may differ.

use std::time::Duration;

/// Heartbeats and elections. A pair that is chosen together: heartbeats of idle groups set the idle cost, the lease
/// (which equals `election_max`) sets the time of a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between heartbeats, at least: the first tick after it sends the next one. It is so much less than the time between
    /// ticks that each of them sends one, also when the one before was late by some tens of milliseconds.
    pub heartbeat: Duration,
    /// Shortest wait before an election, counted from the end of the lease.
    pub election_min: Duration,
    /// Longest wait before an election; also the leader lease.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(200),
            election_min: Duration::from_millis(400),
            election_max: Duration::from_millis(850),
        }
    }
}

impl Timing {
    /// For how long a follower that acknowledged a leader grants its vote to nobody else.
    pub fn lease(&self) -> Duration {
        self.election_max
    }

    /// How old the quorum's acknowledgement may be for an answer under the lease, among replicas of the same timing.
    pub fn usable_lease(&self) -> Duration {
        usable(self.lease())
    }
}

/// How much of a lease that followers promised may be used. A tenth is kept back: for clocks that run at different speeds
/// (assumed within 0.1 %) and for the time an answer takes to leave.
pub(crate) fn usable(lease: Duration) -> Duration {
    lease.mul_f64(0.9)
}

/// The lease of a peer that does not say how long it is: releases before it was said had this one.
pub(crate) const DEFAULT_PEER_LEASE: Duration = Duration::from_millis(850);

/// No lease is longer: for so long a restarted replica would not vote.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(60);
