//! The state of a shard as a part of a snapshot.

use bytes::Bytes;
use holdfast_core::shard::{FrozenShard, ShardState};
use holdfast_replication::StateMachineError;
use holdfast_storage::{SnapshotPart, StorageError};

use super::{DeferredSection, FailedHistory, SectionList, ShardHealth, ShardMachine, empty_state, signals_of};
use crate::group_machine::{PartError, ShardPart, snapshot_part};
use crate::mutations;

/// A decoded part of a snapshot: a state, and the sections since if the shard failed where the snapshot was made.
pub(crate) struct ReadPart {
    pub(crate) core: ShardState,
    pub(crate) sections: Vec<DeferredSection>,
}

/// Returns a frozen state as a part of a snapshot, whose chunks are encoded when they are taken.
pub(crate) fn state_part(shard: &str, frozen: FrozenShard) -> SnapshotPart {
    SnapshotPart::new(shard, move || Box::new(frozen.chunks().map(|chunk| Ok(Bytes::from(chunk)))))
}

impl ShardMachine {
    /// Returns true if the shard's part of a snapshot with all its sections equals what [`Self::freeze`] returns. False
    /// while the shard has failed: its part has the sections since, which it may yet apply.
    pub(crate) fn may_retain_part(&self) -> bool {
        let inner = self.inner.lock();
        inner.core.is_some() && !inner.differs_from_part
    }

    /// Freezes the state; of a shard that failed for good, its last state and the sections since. The returned part is
    /// encoded when it is read.
    pub(crate) fn freeze(&self) -> Result<SnapshotPart, StateMachineError> {
        let inner = self.inner.lock();
        if let Some(core) = &inner.core {
            let frozen = mutations::snapshot_source(core).freeze();
            return Ok(snapshot_part(&self.shard, Vec::new, state_part(&self.shard, frozen)));
        }
        let kept = inner.kept_sections();
        let kept = kept.ok_or_else(|| StateMachineError(format!("shard {} has no state to save", self.shard)))?;
        let state = kept.watched_state(&self.shard);
        Ok(snapshot_part(&self.shard, move || kept.encode(), state))
    }

    /// Reads the shard's part of a snapshot; returns its state also as it is stored.
    ///
    /// # Errors
    /// As [`Self::read_part`].
    pub(crate) fn read_snapshot_part(&self, part: &SnapshotPart) -> Result<(ReadPart, SnapshotPart), PartError> {
        let part = ShardPart::read(part)?;
        Ok((self.read_part(&part)?, part.state))
    }

    /// Decodes the shard's part of a snapshot.
    ///
    /// # Errors
    /// When it can't be read, is damaged, or has neither a state nor sections.
    pub(crate) fn read_part(&self, part: &ShardPart) -> Result<ReadPart, PartError> {
        let damaged = |reason: String| PartError::damaged(&self.shard, reason);
        let core = self.read_chunks(&part.state)?;
        if core.is_none() && part.kept.is_empty() {
            return Err(damaged("it is empty".to_owned()));
        }
        let core = core.unwrap_or_else(|| self.empty_state());
        Ok(ReadPart { core, sections: FailedHistory::decode(&part.kept).map_err(|error| damaged(error.0))? })
    }

    /// Decodes a state, one chunk after the other; one without chunks is that of an empty shard.
    ///
    /// # Errors
    /// When it can't be read, or is damaged.
    pub(crate) fn read_state(&self, state: &SnapshotPart) -> Result<ShardState, PartError> {
        Ok(self.read_chunks(state)?.unwrap_or_else(|| self.empty_state()))
    }

    fn empty_state(&self) -> ShardState {
        empty_state(self.application, &self.shard, self.bounds.clone())
    }

    /// Decodes a state; returns `None` if it has no chunks.
    fn read_chunks(&self, state: &SnapshotPart) -> Result<Option<ShardState>, PartError> {
        let mut failed = None;
        let readable = |chunk: Result<Bytes, StorageError>| chunk.map_err(|error| failed = Some(error)).ok();
        let mut chunks = state.chunks().map_while(readable).peekable();
        let restored = match (chunks.peek().is_some(), self.bounds.clone()) {
            (false, _) => Ok(None),
            (true, None) => ShardState::restore(self.application, &self.shard, chunks.by_ref()).map(Some),
            (true, Some(bounds)) => {
                ShardState::restore_with_bounds(self.application, &self.shard, chunks.by_ref(), bounds).map(Some)
            }
        };
        drop(chunks);
        // Whatever was decoded until then: the rest is missing.
        match failed {
            Some(error) => Err(PartError::of_store(&self.shard, error)),
            None => restored.map_err(|error| PartError::damaged(&self.shard, error.to_string())),
        }
    }

    /// Replaces the state.
    pub(crate) fn install(&self, mut restored: ShardState) {
        if mutations::skips_restore() {
            return;
        }
        if let Some(observer) = &self.observer {
            observer.restored(&self.shard, &restored);
        }
        self.memory.reset(&restored.take_changed_charges());
        let mut inner = self.inner.lock();
        let signals = signals_of(&restored);
        inner.core = Some(restored);
        (inner.kept, inner.backlog) = (None, SectionList::default());
        inner.differs_from_part = false;
        inner.epoch += 1;
        inner.drop_takeover();
        // Under the lock, so that neither contradicts a later state.
        self.health.send_replace(ShardHealth::Healthy);
        self.replace_signals(signals);
        drop(inner);
    }
}
