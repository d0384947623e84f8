//! The timing of every group of a node: one measured choice for all. Nodes of different releases may differ.

use std::time::Duration;

/// Heartbeat and election timing, chosen together: heartbeats of idle groups determine the idle cost, and the lease
/// (equal to `election_max`) determines the failover time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Minimum interval between heartbeats: the first tick after it sends the next one. It is short enough that each
    /// tick sends one, even if the one before was late by some tens of milliseconds.
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
    /// Returns how long a follower that acknowledged a leader votes for no other.
    pub fn lease(&self) -> Duration {
        self.election_max
    }

    /// Returns the maximum age of a quorum's acknowledgement for a read under the lease, among replicas with the same
    /// timing.
    pub fn usable_lease(&self) -> Duration {
        usable(self.lease())
    }
}

/// Returns the usable part of a lease that followers promised. A tenth is reserved for clock rate differences (assumed
/// within 0.1 %) and for the time until a response is sent.
pub(crate) fn usable(lease: Duration) -> Duration {
    lease.mul_f64(0.9)
}

/// The lease of a peer that does not report its own: releases before the report existed used this one.
pub(crate) const DEFAULT_PEER_LEASE: Duration = Duration::from_millis(850);

/// Upper limit of any lease: a restarted replica may not vote for this long.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(60);
