//! Backup of a shard: its state as of one entry of its group.

use std::fmt;
use std::time::Duration;

use holdfast_storage::{SnapshotPart, run_blocking};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, timeout_at};

use crate::entry::FIRST_RULES;
use crate::error::NotLeader;
use crate::group::Group;
use crate::read::ReadMode;
use crate::types::decode_meta;

/// Timeout of the confirmation that this replica leads.
const QUORUM_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of making a snapshot, of whatever size.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(300);

/// The state of a shard, and the last entry that it contains.
#[derive(Debug, Clone)]
pub struct Backup {
    /// The term of that entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The rules of the next entry.
    pub rules: u16,
    /// The part: see [`crate::StateMachine::freeze`]. It stays readable as long as it exists.
    pub part: SnapshotPart,
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
    /// Returns the state in one part of a snapshot, which includes every write acknowledged before the call. Requires a
    /// leader that a quorum confirms.
    ///
    /// # Errors
    /// `NotLeader`, or `SnapshotFailed` when no snapshot is made in time, or has no such part.
    pub async fn back_up(&self, part: &str) -> Result<Backup, BackupError> {
        let deadline = Instant::now() + SNAPSHOT_TIMEOUT;
        self.read_permit(ReadMode::Quorum, Instant::now() + QUORUM_TIMEOUT).await.map_err(BackupError::NotLeader)?;
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
                    return Ok::<(), BackupError>(());
                }
                // openraft merges requests that arrive while it makes a snapshot.
                self.raft().trigger().snapshot().await.map_err(|_| stopped())?;
                metrics.changed().await.map_err(|_| stopped())?;
            }
        };
        let failed = |reason: &dyn fmt::Display| BackupError::SnapshotFailed(reason.to_string());
        timeout_at(deadline, making).await.map_err(|_| failed(&"it took too long"))??;
        let saved = run_blocking(|| self.adapter().saved_part(part)).map_err(|error| failed(&error))?;
        let (meta, part) = saved.ok_or_else(|| failed(&"nothing was ever written"))?;
        let (meta, group) = decode_meta(&meta).map_err(|error| failed(&error))?;
        let (term, index) = meta.last_log_id.map_or((0, 0), |id| (id.leader_id.term, id.index));
        Ok(Backup { term, index, rules: group.rules.unwrap_or(FIRST_RULES), part })
    }
}
