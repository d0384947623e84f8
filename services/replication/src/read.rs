//! Linearizable reads: under the leader lease, or with a quorum round trip.

use std::time::Duration;

use holdfast_mutations::{Mutation, is_enabled};
use openraft::raft::ReadPolicy;
use tokio::time::{Instant, timeout_at};

use crate::error::NotLeader;
use crate::group::Group;
use crate::leadership::Leadership;
use crate::timing::usable;

/// How reads are made linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Under the leader lease: assumes that clock rates differ by at most 0.1 %, and that no machine is paused together
    /// with all of its clocks.
    Lease,
    /// With a quorum round trip per read: assumes nothing about clocks.
    Quorum,
}

/// Permission to read the state now, and the clock at that time.
#[derive(Debug, Clone, Copy)]
pub struct ReadPermit {
    /// The leader's term.
    pub term: u64,
    /// The running shard clock, in milliseconds.
    pub clock_ms: u64,
}

impl Group {
    /// Checks whether the state may be read now as the latest. Under a lease this says nothing about any later time: a
    /// caller that may be interrupted between the permit and the read uses [`Self::read`].
    ///
    /// # Errors
    /// When this replica does not lead, or its lease has expired.
    pub async fn read_permit(&self, reads: ReadMode, deadline: Instant) -> Result<ReadPermit, NotLeader> {
        match reads {
            ReadMode::Lease => self.lease_permit(),
            ReadMode::Quorum => self.quorum_permit(deadline).await,
        }
    }

    /// Reads the state as the latest. Under a lease, the check follows the read: if the process was paused or voted for
    /// another leader in between, the lease is gone and the result is dropped.
    ///
    /// # Errors
    /// As [`Self::read_permit`].
    pub async fn read<T>(
        &self,
        reads: ReadMode,
        deadline: Instant,
        look: impl FnOnce(ReadPermit) -> T,
    ) -> Result<T, NotLeader> {
        let permit = self.read_permit(reads, deadline).await?;
        let seen = look(permit);
        if reads == ReadMode::Lease && self.lease_permit()?.term != permit.term {
            return Err(self.not_leader());
        }
        Ok(seen)
    }

    /// As [`Self::read_permit`], under the leader lease.
    fn lease_permit(&self) -> Result<ReadPermit, NotLeader> {
        let Some(leads) = self.leadership() else { return Err(self.not_leader()) };
        if self.has_lease(leads.term) || is_enabled(Mutation::StaleReads) {
            Ok(permit(leads))
        } else {
            Err(NotLeader { leader: None, term: 0 })
        }
    }

    /// Returns true if a read would be answered under the lease of this term now. A vote for another candidate ends the
    /// lease at once, since the voters promise nothing if the leader itself yields. A later acknowledgement does not
    /// revive the lease, nor does it matter when this replica learns that it no longer leads.
    pub fn has_lease(&self, term: u64) -> bool {
        let is_tied = self.has_not_voted_since(term) || is_enabled(Mutation::VoteUntied);
        is_tied && self.has_quorum(term, usable(self.shortest_lease(term)))
    }

    /// Returns the shortest lease among this leader and its voters: their releases may differ.
    fn shortest_lease(&self, term: u64) -> Duration {
        let own = self.timing().lease();
        let theirs = self.lease_tracker().shortest_lease(term).filter(|_| !is_enabled(Mutation::LeaseByRelease));
        theirs.map_or(own, |theirs| theirs.min(own))
    }

    /// Returns true if a quorum acknowledged the leader of this term within `lately`. The age is measured now, so a
    /// process that was paused, or whose machine was suspended, finds its lease expired.
    pub(crate) fn has_quorum(&self, term: u64, lately: Duration) -> bool {
        self.lease_tracker().quorum_age(term).is_some_and(|age| age < lately)
    }

    async fn quorum_permit(&self, deadline: Instant) -> Result<ReadPermit, NotLeader> {
        let Some(leads) = self.leadership() else { return Err(self.not_leader()) };
        let linearize = self.raft().ensure_linearizable(ReadPolicy::ReadIndex);
        if !matches!(timeout_at(deadline, linearize).await, Ok(Ok(_))) {
            return Err(NotLeader { leader: None, term: 0 });
        }
        // Still the same leader: a permit names the term whose clock it carries.
        match self.leadership() {
            Some(now) if now.term == leads.term => Ok(permit(now)),
            _ => Err(NotLeader { leader: None, term: 0 }),
        }
    }
}

fn permit(leads: Leadership) -> ReadPermit {
    ReadPermit { term: leads.term, clock_ms: leads.clock.now_ms() }
}
