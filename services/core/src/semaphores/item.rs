//! Holds and waiting requests.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::DueEntry;
use super::key::Key;
use crate::locks::{Attempts, EncodedMetadata};
use crate::{AcquirePermits, FencingToken, MAX_PRIORITY, Path, PermitHolderView, PermitWaitView, Phase, Rules, WaitId};

/// The order of a queue: by priority, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct QueueRank {
    /// How far the priority is from the highest one.
    behind: u8,
    pub(super) wait: WaitId,
}

impl QueueRank {
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

/// What a request sets for its hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PermitTerms {
    /// Absent for a hold that lives as long as a session.
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u32,
    pub(super) metadata: EncodedMetadata,
}

/// A hold of some permits.
#[derive(Clone, Debug)]
pub(super) struct PermitHold {
    pub(super) key: Arc<Key>,
    pub(super) process_id: Arc<str>,
    pub(super) weight: u64,
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
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(super) struct PermitWait {
    pub(super) key: Arc<Key>,
    pub(super) process_id: Arc<str>,
    pub(super) weight: u64,
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
        Some(DueEntry { at_ms: self.deadline_ms?, is_wait: false, number: self.token })
    }

    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(super) fn view(&self) -> PermitHolderView {
        PermitHolderView {
            owner: self.key.owner(),
            process_id: self.process_id.to_string(),
            request_id: self.key.request_id.to_string(),
            weight: self.weight,
            fencing_token: self.token,
            locked_at_ms: self.locked_at_ms,
            deadline_ms: self.deadline_ms,
            phase: self.phase,
            metadata: self.metadata.get(),
        }
    }
}

impl PermitWait {
    pub(super) fn view(&self, wait: WaitId, rank: QueueRank, queue_position: u64) -> PermitWaitView {
        PermitWaitView {
            wait,
            path: Path::clone(&self.key.path),
            owner: self.key.owner(),
            process_id: self.process_id.to_string(),
            request_id: self.key.request_id.to_string(),
            weight: self.weight,
            priority: rank.priority(),
            queue_position,
            attempt: self.attempts.highest(),
            since_ms: self.since_ms,
            ends_at_ms: self.ends_at_ms,
        }
    }

    pub(super) fn due(&self, rank: QueueRank) -> Option<DueEntry> {
        Some(DueEntry { at_ms: self.ends_at_ms?, is_wait: true, number: rank.wait.0 })
    }
}
