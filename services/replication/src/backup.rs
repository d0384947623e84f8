//! The whole state of a group, as of one entry.

use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, timeout_at};

use crate::entry::FIRST_RULES;
use crate::error::NotLeader;
use crate::group::Group;
use crate::lease::ReadMode;
use crate::types::SnapshotData;

/// How long a snapshot may take to be made.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(25);

/// A state, and the last entry that it contains.
#[derive(Debug, Clone)]
pub struct Backup {
    /// The term of that entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The rules by which the next entry is applied.
    pub rules: u16,
    /// As [`crate::StateMachine::freeze`] gives it.
    pub chunks: Vec<Bytes>,
}

/// There is no backup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// Another replica leads.
    #[error("the replica does not lead its shard")]
    NotLeader(NotLeader),
    /// It took too long, or the replica has stopped.
    #[error("no snapshot could be made: {0}")]
    SnapshotFailed(String),
}

impl Group {
    /// The state with everything that was answered before the call. Only a leader that a quorum confirms has it.
    ///
    /// # Errors
    /// `NotLeader`, or `SnapshotFailed` when no snapshot is made in time.
    pub async fn back_up(&self) -> Result<Backup, BackupError> {
        let deadline = Instant::now() + SNAPSHOT_TIMEOUT;
        self.read_permit(ReadMode::Quorum, deadline).await.map_err(BackupError::NotLeader)?;
        let stopped = || BackupError::SnapshotFailed("the replica has stopped".to_owned());
        let mut metrics = self.raft().metrics();
        let wanted = metrics.borrow_watched().last_applied;
        let making = async {
            loop {
                let has_it = metrics.borrow_and_update().snapshot >= wanted;
                if has_it {
                    break;
                }
                // Several requests while one is being made are one.
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
