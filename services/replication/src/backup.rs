//! Backup of a group: its whole state as of one entry.

use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, timeout_at};

use crate::entry::FIRST_RULES;
use crate::error::NotLeader;
use crate::group::Group;
use crate::read::ReadMode;
use crate::types::SnapshotData;

/// Timeout of making a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(25);

/// A state, and the last entry that it contains.
#[derive(Debug, Clone)]
pub struct Backup {
    /// The term of that entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The rules of the next entry.
    pub rules: u16,
    /// The chunks of [`crate::StateMachine::freeze`].
    pub chunks: Vec<Bytes>,
}

/// Errors of a backup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// Another replica leads.
    #[error("the replica does not lead its group")]
    NotLeader(NotLeader),
    /// The snapshot timed out, or the replica has stopped.
    #[error("no snapshot could be made: {0}")]
    SnapshotFailed(String),
}

impl Group {
    /// Returns the state, which includes every write acknowledged before the call. Requires a leader that a quorum
    /// confirms.
    ///
    /// # Errors
    /// `NotLeader`, or `SnapshotFailed` when no snapshot is made in time.
    pub async fn back_up(&self) -> Result<Backup, BackupError> {
        let deadline = Instant::now() + SNAPSHOT_TIMEOUT;
        self.read_permit(ReadMode::Quorum, deadline).await.map_err(BackupError::NotLeader)?;
        if !self.can_freeze() {
            return Err(BackupError::SnapshotFailed("a shard of the group has failed on its leader".to_owned()));
        }
        let stopped = || BackupError::SnapshotFailed("the replica has stopped".to_owned());
        let mut metrics = self.raft().metrics();
        let wanted = metrics.borrow_watched().last_applied;
        let making = async {
            loop {
                let has_it = metrics.borrow_and_update().snapshot >= wanted;
                if has_it {
                    break;
                }
                // openraft merges requests that arrive while it makes a snapshot.
                self.raft().trigger().snapshot().await.map_err(|_| stopped())?;
                metrics.changed().await.map_err(|_| stopped())?;
            }
            self.raft().get_snapshot().await.map_err(|error| BackupError::SnapshotFailed(error.to_string()))
        };
        let made = timeout_at(deadline, making).await;
        let made = made.map_err(|_| BackupError::SnapshotFailed("it took too long".to_owned()))??;
        let snapshot = made.ok_or_else(|| BackupError::SnapshotFailed("nothing was ever written".to_owned()))?;
        let last = snapshot.meta.last_log_id;
        let (term, index) = last.map_or((0, 0), |id| (id.leader_id.term, id.index));
        let SnapshotData { group, chunks } = snapshot.snapshot;
        Ok(Backup { term, index, rules: group.rules.unwrap_or(FIRST_RULES), chunks })
    }
}
