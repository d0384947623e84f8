//! A state that comes out of a backup and goes on as that of a new cluster.
//!
//! What happened after the backup is forgotten, but not by clients: they hold tokens, and shards may have heard of one
//! another what the sender does not remember. So everything that is numbered goes on far above what can have been given.

use crate::Revision;
use crate::codec::DecodeError;
use crate::shard::ShardState;
use crate::shard_common::REVISION_LIMIT;

/// By how much a restore raises revisions, fencing tokens among them, and the numbers of messages between shards. At a
/// million changes a second it is 12 days between the backup and the loss of the cluster.
pub const RESTORE_MARGIN: u64 = 1 << 40;

impl ShardState {
    /// Makes a restored state one to go on from. The states of different shards are of different moments: what one has
    /// told another is told once more, so that every account and namespace that its own shard knows is open.
    ///
    /// # Errors
    /// When there is no room left above the revisions.
    pub fn advance_after_restore(&mut self) -> Result<(), DecodeError> {
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
            Self::Locks(_) => {}
        }
        Ok(())
    }
}
