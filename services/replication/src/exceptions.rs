//! What is left out of the history of a shard, because no replica can apply it.
//!
//! No replica leaves anything out by itself: its state would differ from that of replicas that could apply it. An operator
//! decides, and the decision is an entry. From then on it is part of the state of the group, and every replica builds the
//! state of the shard again without what is left out.

use std::time::Duration;

use bytes::Bytes;
use openraft::EntryPayload;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::entry::{Body, GroupCommand};
use crate::error::ProposeError;
use crate::group::Group;
use crate::state_machine::{ApplyFailure, FailedEntry};
use crate::types::LogId;

/// Exceptions of a group. Each is the outcome of a fault that an operator has looked into.
pub(crate) const MAX_EXCEPTIONS: usize = 64;
/// Bytes that say what is left out.
const MAX_EXCEPTION_BYTES: usize = 4_096;
/// Timeout of the entry.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);

/// What is left out of the history of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// The number of the shard.
    pub shard: u32,
    /// The index of the entry from which on it is left out. The entry has a section for the shard.
    pub index: u64,
    /// What that is, as the state machine encodes it.
    pub what: Bytes,
}

impl Exception {
    /// Describes why a shard has no state once this was decided in the entry of that id: the state that it had may be one
    /// with what is left out.
    pub(crate) fn failure(&self, id: LogId) -> FailedEntry {
        let message = format!("an operator has decided to leave something out at entry {}", self.index);
        FailedEntry { term: id.leader_id.term, index: id.index, failure: ApplyFailure::invalid_entry(message) }
    }
}

impl Group {
    /// Logs, as the leader, that something is left out of the history of a shard; returns once that is applied here. The
    /// caller has checked that an entry that is not in the log any more had a section for the shard.
    ///
    /// # Errors
    /// When this replica does not lead, the entry has no section for the shard, it is left out already, too much is, or
    /// the outcome is unknown.
    pub async fn log_exception(&self, exception: Exception) -> Result<(), ProposeError> {
        let Some(leads) = self.leadership() else { return Err(self.not_leader().into()) };
        if exception.what.len() > MAX_EXCEPTION_BYTES {
            return Err(ProposeError::NotProposed("what is to be left out takes too many bytes"));
        }
        if self.group_state().with_exception(&exception).is_none() {
            return Err(ProposeError::NotProposed("it is left out already, or the group leaves out too much"));
        }
        if self.has_section(exception.shard, exception.index) == Some(false) {
            return Err(ProposeError::NotProposed("the entry has nothing for the shard"));
        }
        let logged = timeout(ENTRY_TIMEOUT, self.propose_structural(leads.term, GroupCommand::Quarantine(exception)));
        logged.await.unwrap_or(Err(ProposeError::Unknown("the entry was not applied in time")))
    }
    /// Returns whether the entry of this index has a section for the shard of this number; `None` if the log does not
    /// have that entry any more, or it can't be read.
    pub fn has_section(&self, shard: u32, index: u64) -> Option<bool> {
        let entries = self.read_log(index, index.saturating_add(1), 1).ok()?;
        let EntryPayload::Normal(data) = &entries.first()?.payload else { return Some(false) };
        match data.read().ok()?.body {
            Body::Structural(_) => Some(false),
            Body::Commands(sections) => Some(sections.iter().any(|section| section.shard == shard)),
        }
    }
}
