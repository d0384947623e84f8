//! Replays the history of one shard from the stored snapshot and the log.

use bytes::Bytes;
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_storage::{SnapshotPart, run_blocking};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use tokio::task::yield_now;

use crate::entry::{Body, GroupCommand};
use crate::exceptions::Exception;
use crate::group::Group;
use crate::rules::GroupState;
use crate::state_machine::{EntryHeader, StateMachineError};
use crate::types::{Entry, decode_meta};

/// Bytes of the log read at once.
const MAX_READ_BYTES: usize = 1024 * 1024;

/// A step of a shard's history, in order. The snapshot comes first, if there is one.
pub enum HistoryStep<'a> {
    /// The shard's part of the group's snapshot.
    Snapshot {
        /// The index of the last entry in the snapshot.
        index: u64,
        /// The part.
        part: &'a SnapshotPart,
        /// What is left out of the histories of the group's shards, and of this part.
        exceptions: &'a [Exception],
    },
    /// A section for the shard.
    Section {
        /// The header of its entry.
        header: EntryHeader,
        /// The commands for the shard.
        commands: Vec<Bytes>,
    },
}

/// A history can't be read, or was replaced meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the history can't be read: {0}")]
pub struct ReplayError(String);

impl Group {
    /// Passes the history of a shard up to and including an entry to `visit`: its part of the snapshot, which has this
    /// name, then its sections. Other tasks run in between.
    ///
    /// # Errors
    /// When `visit` can't read the part, or the snapshot or the log can't be read; a later snapshot may have replaced
    /// both meanwhile.
    pub async fn replay(
        &self,
        shard: u32,
        part: &str,
        until: u64,
        mut visit: impl FnMut(HistoryStep<'_>) -> Result<(), StateMachineError> + Send,
    ) -> Result<(), ReplayError> {
        let unreadable = |error: &dyn std::fmt::Display| ReplayError(error.to_string());
        let (mut next, mut state) = (0, GroupState::default());
        if let Some((meta, part)) =
            run_blocking(|| self.adapter().saved_part(part)).map_err(|error| unreadable(&error))?
        {
            let (meta, group) = decode_meta(&meta).map_err(|error| unreadable(&error))?;
            let index = meta.last_log_id.map_or(0, |id| id.index);
            let step = HistoryStep::Snapshot { index, part: &part, exceptions: &group.exceptions };
            run_blocking(|| visit(step)).map_err(|error| unreadable(&error))?;
            (next, state) = (meta.last_log_id.map_or(0, |id| id.index + 1), group);
            if is_enabled(Mutation::SectionReplayed) {
                next = self.first_log_index().map_or(next, |first| first.min(next));
            }
        }
        while next <= until {
            let entries = self.read_log(next, until + 1, MAX_READ_BYTES).map_err(|error| unreadable(&error))?;
            let is_next = |first: &Entry| first.log_id().index == next || is_enabled(Mutation::RebuildGap);
            if !entries.first().is_some_and(is_next) {
                return Err(ReplayError(format!("entry {next} is not in the log any more")));
            }
            for entry in entries {
                next = entry.log_id().index + 1;
                self.replay_entry(shard, &entry, &mut state, &mut visit)?;
            }
            yield_now().await;
        }
        Ok(())
    }

    /// Returns the first entry that is in the log still, if there is one.
    fn first_log_index(&self) -> Option<u64> {
        let entries = self.read_log(0, u64::MAX, 1).ok()?;
        entries.first().map(|first| first.log_id().index)
    }

    fn replay_entry(
        &self,
        shard: u32,
        entry: &Entry,
        state: &mut GroupState,
        visit: &mut impl FnMut(HistoryStep<'_>) -> Result<(), StateMachineError>,
    ) -> Result<(), ReplayError> {
        let EntryPayload::Normal(data) = &entry.payload else { return Ok(()) };
        let unreadable = |error: &dyn std::fmt::Display| ReplayError(error.to_string());
        let block = data.read().map_err(|error| unreadable(&error))?;
        let named = match block.body {
            Body::Structural(GroupCommand::RaiseRules(next)) => next,
            Body::Structural(GroupCommand::Checkpoint { .. } | GroupCommand::Quarantine(_)) | Body::Commands(_) => {
                block.rules
            }
        };
        *state = state.raised(named, self.known_rules()).map_err(|error| unreadable(&error))?;
        let header = block.header(entry.log_id(), state);
        let Body::Commands(sections) = block.body else { return Ok(()) };
        let Some(section) = sections.into_iter().find(|section| section.shard == shard) else { return Ok(()) };
        visit(HistoryStep::Section { header, commands: section.commands }).map_err(|error| unreadable(&error))
    }
}
