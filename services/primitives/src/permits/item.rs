//! Holds and waiting requests.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::DueEntry;
use super::key::Key;
use crate::ask::Asks;
use crate::attempts::Attempts;
use crate::metadata::EncodedMetadata;
use crate::{
    AcquirePermits, FencingToken, MAX_PRIORITY, PermitHolderView, PermitWaitView, Phase, Rules, WaitId, Wanted,
};

/// So many members that come back count as one more end of a slice, and so many that are granted as one more grant: a
/// slice ends twice as much as it grants, in the same time.
const MEMBERS_PER_END: u64 = 4;
const MEMBERS_PER_GRANT: u64 = 8;

/// The order of a queue: by priority, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct QueueRank {
    /// How far the priority is from the highest one.
    behind: u8,
    pub(super) wait: WaitId,
}

impl QueueRank {
    /// A rank before all others.
    pub(super) const FIRST: Self = Self { behind: 0, wait: WaitId(0) };

    pub(super) fn new(priority: u8, wait: WaitId) -> Self {
        Self { behind: MAX_PRIORITY.saturating_sub(priority), wait }
    }

    pub(super) fn priority(self) -> u8 {
        MAX_PRIORITY.saturating_sub(self.behind)
    }

    /// Returns whether no request of that priority or a lower one comes before it.
    pub(super) fn precedes(self, priority: u8) -> bool {
        self.priority() >= priority
    }
}

impl Default for QueueRank {
    fn default() -> Self {
        Self::FIRST
    }
}

/// What a request sets for its hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PermitTerms {
    /// Absent for a hold that lives as long as a session.
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u32,
    pub(super) metadata: EncodedMetadata,
}

/// What a hold of a pool has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// In order of name; at least one.
    pub(super) members: Vec<Arc<str>>,
    /// What it requested.
    pub(super) wanted: Wanted,
}

/// A hold of some permits, or of some members.
#[derive(Clone, Debug)]
pub(super) struct PermitHold {
    pub(super) key: Arc<Key>,
    pub(super) process_id: Arc<str>,
    /// The number of permits, or of members.
    pub(super) weight: u64,
    /// Of a pool only.
    pub(super) lease: Option<Lease>,
    pub(super) token: FencingToken,
    /// Wall clock at the grant.
    pub(super) locked_at_ms: u64,
    pub(super) phase: Phase,
    /// Shard clock at which the phase ends; absent for a hold that lives as long as a session.
    pub(super) deadline_ms: Option<u64>,
    pub(super) transition_ms: u32,
    pub(super) metadata: EncodedMetadata,
    /// The calls that rely on it.
    pub(super) attempts: Attempts,
    /// Requests to release it.
    pub(super) asks: Asks,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(super) struct PermitWait {
    pub(super) key: Arc<Key>,
    pub(super) process_id: Arc<str>,
    pub(super) wanted: Wanted,
    pub(super) terms: PermitTerms,
    /// The calls that rely on it.
    pub(super) attempts: Attempts,
    /// Shard clock at which it times out.
    pub(super) ends_at_ms: Option<u64>,
    /// Wall clock when it began to wait.
    pub(super) since_ms: u64,
}

impl PermitHold {
    /// Adds the call of a request to those that rely on the hold.
    pub(super) fn attach(&mut self, request: &AcquirePermits) {
        let call = Attempts::of(request.attempt);
        if self.attempts.is_permanent() || call.is_permanent() {
            self.attempts = Attempts::of(0);
        } else {
            self.attempts.attach(&call, &request.abandoned, Rules::TWO);
        }
    }

    pub(super) fn due(&self) -> Option<DueEntry> {
        Some(DueEntry { at_ms: self.ends_at_ms()?, is_wait: false, number: self.token })
    }

    /// Returns the shard clock at which its phase ends, or the hold by force.
    pub(super) fn ends_at_ms(&self) -> Option<u64> {
        self.deadline_ms.into_iter().chain(self.asks.forced_at_ms).min()
    }

    pub(super) fn members(&self) -> &[Arc<str>] {
        self.lease.as_ref().map_or(&[], |lease| &lease.members)
    }

    /// Returns what ending it costs, in ends of a slice.
    pub(super) fn ends(&self) -> u64 {
        self.lease.as_ref().map_or(1, |lease| 1 + lease.wanted.weight() / MEMBERS_PER_END)
    }

    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Returns a view without the members.
    pub(super) fn view(&self) -> PermitHolderView {
        PermitHolderView {
            owner: self.key.owner(),
            process_id: self.process_id.to_string(),
            request_id: self.key.request_id.to_string(),
            weight: self.weight,
            members: Vec::new(),
            fencing_token: self.token,
            locked_at_ms: self.locked_at_ms,
            deadline_ms: self.ends_at_ms(),
            phase: self.phase,
            metadata: self.metadata.get(),
            release_requested: self.asks.view().map(Box::new),
        }
    }
}

impl PermitWait {
    pub(super) fn view(&self, wait: WaitId, rank: QueueRank, queue_position: u64) -> PermitWaitView {
        PermitWaitView {
            wait,
            kind: self.key.name.kind,
            path: self.key.name.path.clone(),
            owner: self.key.owner(),
            process_id: self.process_id.to_string(),
            request_id: self.key.request_id.to_string(),
            weight: self.wanted.weight(),
            member: if let Wanted::Member(name) = &self.wanted { Some(name.clone()) } else { None },
            priority: rank.priority(),
            queue_position,
            attempt: self.attempts.highest(),
            since_ms: self.since_ms,
            ends_at_ms: self.ends_at_ms,
        }
    }

    /// Returns what granting it costs, in grants of a slice.
    pub(super) fn grants(&self) -> usize {
        let of_members = match self.wanted {
            Wanted::Permits { .. } => 0,
            Wanted::Members { .. } | Wanted::Member(_) => self.wanted.weight() / MEMBERS_PER_GRANT,
        };
        usize::try_from(1 + of_members).unwrap_or(usize::MAX)
    }

    pub(super) fn due(&self, rank: QueueRank) -> Option<DueEntry> {
        Some(DueEntry { at_ms: self.ends_at_ms?, is_wait: true, number: rank.wait.0 })
    }
}
