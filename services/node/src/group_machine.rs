//! The states of a group's shards, as the group's log changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::codec;
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, Exception, FailedEntry, FailedShards, FrozenState, ReplyMode,
    StateMachine, StateMachineError,
};
use holdfast_storage::{PartUpdate, SnapshotPart, StorageError};

use crate::machine::{MAX_READ_BYTES, ShardMachine};

/// The shards of a group; the index of a shard is its number in the group's log.
pub struct GroupMachine {
    shards: Vec<Arc<ShardMachine>>,
}

/// A shard in a snapshot. Its part of the snapshot is named by its id, so that a snapshot of other shards is never
/// taken for one of these.
#[derive(Clone, Debug)]
pub(crate) struct ShardPart {
    /// The sections since its state, if the shard failed at one of them where the snapshot was made. See
    /// `FailedHistory`.
    pub(crate) kept: Vec<Bytes>,
    /// Its state, in chunks of at most 1 MiB; none if it has no earlier state than that of an empty shard.
    pub(crate) state: SnapshotPart,
}

/// Returns the part of a shard in a snapshot: a chunk with the number of chunks with sections, those, then the chunks
/// of the state, which are taken only when the part is read.
pub(crate) fn snapshot_part(
    shard: &str,
    kept: impl Fn() -> Vec<Bytes> + Send + Sync + 'static,
    state: SnapshotPart,
) -> SnapshotPart {
    SnapshotPart::new(shard, move || {
        let kept = kept();
        // They have some hundred MiB at most.
        let first = Bytes::from(codec::encode(&u32::try_from(kept.len()).unwrap_or(u32::MAX)));
        Box::new(std::iter::once(first).chain(kept).map(Ok).chain(state.chunks()))
    })
}

/// Why the part of a shard can't be used.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum PartError {
    /// It is damaged, or of another release: as far as this replica knows, the shard has no state.
    #[error("the snapshot of shard {shard} is damaged: {reason}")]
    Damaged {
        /// The shard.
        shard: String,
        /// The cause.
        reason: String,
    },
    /// The store can't be read.
    #[error("the snapshot of shard {shard} can't be read: {error}")]
    Unreadable {
        /// The shard.
        shard: String,
        /// The cause.
        error: Box<StorageError>,
    },
}

impl PartError {
    pub(crate) fn damaged(shard: &str, reason: impl Into<String>) -> Self {
        Self::Damaged { shard: shard.to_owned(), reason: reason.into() }
    }

    pub(crate) fn of_store(shard: &str, error: StorageError) -> Self {
        match error {
            StorageError::Corrupt { .. } => Self::damaged(shard, error.to_string()),
            error => Self::Unreadable { shard: shard.to_owned(), error: Box::new(error) },
        }
    }
}

impl From<PartError> for StateMachineError {
    fn from(error: PartError) -> Self {
        Self(error.to_string())
    }
}

impl ShardPart {
    /// Reads a part up to the chunks of the state.
    ///
    /// # Errors
    /// When it can't be read, does not begin with the number of chunks with sections, or has too many.
    pub(crate) fn read(part: &SnapshotPart) -> Result<Self, PartError> {
        let damaged = |reason: String| PartError::damaged(part.name(), reason);
        let mut chunks = part.chunks();
        let mut next = || match chunks.next() {
            Some(chunk) => chunk.map_err(|error| PartError::of_store(part.name(), error)),
            None => Err(damaged("it is cut short".to_owned())),
        };
        let count: u32 = codec::decode(&next()?).map_err(|error| damaged(error.to_string()))?;
        let (mut kept, mut bytes) = (Vec::new(), 0_usize);
        for _ in 0..count {
            let chunk = next()?;
            bytes = bytes.saturating_add(chunk.len());
            if bytes > MAX_READ_BYTES {
                return Err(damaged("it has too many sections".to_owned()));
            }
            kept.push(chunk);
        }
        let state = part.without_first(kept.len().saturating_add(1));
        Ok(Self { kept, state })
    }
}

impl GroupMachine {
    /// Creates the machine of a group from its shards, in order of their numbers.
    pub fn new(shards: Vec<Arc<ShardMachine>>) -> Self {
        Self { shards }
    }

    fn shard(&self, number: u32) -> Option<&ShardMachine> {
        self.shards.get(usize::try_from(number).ok()?).map(Arc::as_ref)
    }

    fn known_shard(&self, number: u32) -> Result<&ShardMachine, StateMachineError> {
        self.shard(number).ok_or_else(|| StateMachineError(format!("the group has no shard of number {number}")))
    }
}

impl StateMachine for GroupMachine {
    fn apply<'a>(
        &'a self,
        header: EntryHeader,
        shard: u32,
        commands: &'a [Bytes],
        replies: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        let shard = self.known_shard(shard).map_err(|error| ApplyFailure::invalid_entry(error.0))?;
        shard.apply(header, commands, replies)
    }

    fn isolate(&self, shard: u32, failed_entry: &FailedEntry) -> bool {
        self.shard(shard).map(|shard| shard.isolate(failed_entry)).is_some()
    }

    fn failed_shards(&self) -> FailedShards {
        let numbered = (0..).zip(&self.shards);
        numbered.filter_map(|(number, shard)| Some((number, shard.failed_index()?))).collect()
    }

    fn set_exceptions(&self, exceptions: &[Exception]) -> Result<(), StateMachineError> {
        let mut of_shards = Vec::with_capacity(self.shards.len());
        for (shard, number) in self.shards.iter().zip(0..) {
            let own = exceptions.iter().filter(|exception| exception.shard == number).cloned().collect();
            of_shards.push(shard.read_exceptions(own)?);
        }
        // All could be read: they change together or not at all.
        self.shards.iter().zip(of_shards).for_each(|(shard, own)| shard.set_exceptions(own));
        Ok(())
    }

    fn checkpoint(&self, shard: u32, index: u64, from: Option<u64>) {
        if let Some(shard) = self.shard(shard) {
            shard.checkpoint(index, from);
        }
    }

    fn checkpoint_digest(&self, shard: u32, index: u64) -> Option<Bytes> {
        self.shard(shard)?.checkpoint_digest(index)
    }

    fn checkpoint_state(&self, shard: u32, index: u64) -> Option<SnapshotPart> {
        self.shard(shard)?.checkpoint_state(index)
    }

    fn assess(&self, rules: u16, shard: u32, command: &[u8]) -> Result<CommandCost, StateMachineError> {
        self.known_shard(shard)?.assess(rules, command)
    }

    fn price(&self, shard: u32, account: u64, kind: u8, min_units: u64) -> u64 {
        self.shard(shard).map_or(min_units, |shard| shard.price(account, kind, min_units))
    }

    fn set_rules(&self, rules: u16) {
        self.shards.iter().for_each(|shard| shard.set_rules(rules));
    }

    fn prepare_leadership(&self, term: u64) -> bool {
        self.shards.iter().all(|shard| shard.prepare_leadership(term))
    }

    fn on_leadership_change(&self, term: Option<u64>) {
        self.shards.iter().for_each(|shard| shard.on_leadership_change(term));
    }

    /// Returns the latest clock of all shards. That of a shard without sections stays behind.
    fn clock_ms(&self) -> u64 {
        self.shards.iter().map(|shard| shard.clock_ms()).max().unwrap_or(0)
    }

    fn can_freeze(&self) -> bool {
        self.shards.iter().all(|shard| shard.can_freeze())
    }

    fn freeze(&self, is_saved: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError> {
        let update = |(shard, number): (&Arc<ShardMachine>, u32)| {
            if is_saved(number) && shard.may_retain_part() {
                return Ok(PartUpdate::Retain(shard.id().to_owned()));
            }
            shard.freeze().map(PartUpdate::Write)
        };
        self.shards.iter().zip(0..).map(update).collect()
    }

    fn restore(&self, index: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError> {
        let mut by_shard: BTreeMap<&str, &SnapshotPart> = parts.iter().map(|part| (part.name(), part)).collect();
        if by_shard.len() < parts.len() {
            return Err(StateMachineError("a shard has two parts in the snapshot".to_owned()));
        }
        let mut own = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let part = by_shard.remove(shard.id());
            own.push(part.ok_or_else(|| StateMachineError(format!("the snapshot lacks shard {}", shard.id())))?);
        }
        if let Some(other) = by_shard.keys().next() {
            return Err(StateMachineError(format!("the snapshot has shard {other}, which the group does not have")));
        }
        let mut restored = Vec::with_capacity(self.shards.len());
        for (shard, part) in self.shards.iter().zip(own) {
            restored.push(match shard.read_snapshot_part(part) {
                Err(error @ PartError::Unreadable { .. }) => return Err(error.into()),
                read => read,
            });
        }
        // All parts that are not damaged could be read: the states change together or not at all.
        for (shard, read) in self.shards.iter().zip(restored) {
            match read {
                Ok((read, state)) => shard.install_part(index, read, state)?,
                Err(error) => shard.fail_at_snapshot(index, &error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
