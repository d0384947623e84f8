//! Prepares a state that lacks later changes: a state restored from a backup for a new cluster, or a state that
//! operators have chosen.
//!
//! Clients still know these changes: they hold fencing tokens and session numbers. Other shards may have received
//! messages that their sender no longer knows. So all numbers continue far above any number that can have been
//! assigned.

use holdfast_primitives::kit::REVISION_LIMIT;

use crate::Revision;
use crate::codec::DecodeError;
use crate::locks;
use crate::shard::ShardState;

/// The increment that a restore applies to revisions, including fencing tokens, and to message numbers between shards.
/// At a million changes a second it covers 12 days between the backup and the loss of the cluster.
pub const RESTORE_MARGIN: u64 = 1 << 40;

/// Returns the chunks of a locks shard's snapshot with its clock and all its instants later by a time, so that
/// everything keeps its remaining time. The shards of one group share its clock; shards of a backup may have had other
/// clocks. After an error, which means that the chunks are damaged, the iterator ends.
pub fn delay_locks_snapshot(
    chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    by_ms: u64,
) -> impl Iterator<Item = Result<Vec<u8>, DecodeError>> {
    locks::delay_snapshot(chunks, by_ms)
}

impl ShardState {
    /// Advances all numbers of a state that lacks what was done after it. A state without space above its revisions
    /// stays as it is: so it is after 8,000 times.
    /// `now_ms` is the shard clock of the entry that does so, to which the state may not have advanced yet.
    pub fn advance_numbers(&mut self, now_ms: u64) {
        // It is logged, so every replica decides alike.
        let _ = self.advance_all(now_ms);
    }

    /// Prepares a restored state for use. Backups of different shards are from different times. So accounts and
    /// namespaces shards send their open messages again, which opens every account and namespace that they know. Lock
    /// tables in the memory of leaders grant nothing until all sessions of after the backup have expired.
    ///
    /// # Errors
    /// When no space is left above the revisions.
    pub fn advance_after_restore(&mut self) -> Result<(), DecodeError> {
        self.advance_all(0)
    }

    fn advance_all(&mut self, now_ms: u64) -> Result<(), DecodeError> {
        let state = self.common_mut();
        let raised: Revision = state.revision.saturating_add(RESTORE_MARGIN);
        if raised >= REVISION_LIMIT {
            return Err(DecodeError::Snapshot("it was restored so often that no revisions are left"));
        }
        state.revision = raised;
        let next = state.outbox.next_number().saturating_add(RESTORE_MARGIN);
        state.outbox.restore_next_number(next);
        match self {
            Self::Accounts(core) => core.enqueue_all(),
            Self::Namespaces(core) => core.enqueue_all(),
            Self::Locks(core) => core.void_epoch(now_ms),
        }
        Ok(())
    }
}
