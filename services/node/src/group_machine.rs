//! The states of a group's shards, as the group's log changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::codec;
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, Exception, FailedEntry, FailedShards, FrozenState, ReplyMode,
    StateMachine, StateMachineError,
};
use holdfast_storage::{PartUpdate, SnapshotPart};

use crate::machine::{FrozenPart, ShardMachine};

/// The shards of a group; the index of a shard is its number in the group's log.
pub struct GroupMachine {
    shards: Vec<Arc<ShardMachine>>,
}

/// A shard in a snapshot. Its part of the snapshot is named by its id, so that a snapshot of other shards is never
/// taken for one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardPart {
    /// Its state, in chunks of at most 1 MiB; none if it has no earlier state than that of an empty shard.
    pub(crate) state: Vec<Bytes>,
    /// The sections since that state, if the shard failed at one of them here. See `FailedHistory`.
    pub(crate) kept: Vec<Bytes>,
}

impl ShardPart {
    /// Returns the part of the shard of this id: a chunk with the number of chunks of the state, then all chunks.
    pub(crate) fn into_snapshot_part(self, shard: String) -> SnapshotPart {
        // A state has at most some thousand chunks of 1 MiB.
        let states = u32::try_from(self.state.len()).unwrap_or(u32::MAX);
        let first = Bytes::from(codec::encode(&states));
        let chunks = std::iter::once(first).chain(self.state).chain(self.kept).collect();
        SnapshotPart { name: shard, chunks }
    }

    /// Decodes the chunks of a part.
    ///
    /// # Errors
    /// When they do not begin with the number of those of the state, or are fewer.
    pub(crate) fn decode(chunks: &[Bytes]) -> Result<Self, StateMachineError> {
        let damaged = |reason: String| StateMachineError(format!("a part of the snapshot can't be read: {reason}"));
        let (first, rest) = chunks.split_first().ok_or_else(|| damaged("it is empty".to_owned()))?;
        let states: u32 = codec::decode(first).map_err(|error| damaged(error.to_string()))?;
        let states = usize::try_from(states).unwrap_or(usize::MAX);
        let (state, kept) = rest.split_at_checked(states).ok_or_else(|| damaged("it is cut short".to_owned()))?;
        Ok(Self { state: state.to_vec(), kept: kept.to_vec() })
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

    fn checkpoint_chunks(&self, shard: u32, index: u64) -> Option<Vec<Bytes>> {
        self.shard(shard)?.checkpoint_chunks(index)
    }

    fn assess(&self, rules: u16, shard: u32, command: &[u8]) -> Result<CommandCost, StateMachineError> {
        self.known_shard(shard)?.assess(rules, command)
    }

    fn price(&self, shard: u32, account: u64, min_units: u64) -> u64 {
        self.shard(shard).map_or(min_units, |shard| shard.price(account, min_units))
    }

    fn set_rules(&self, rules: u16) {
        self.shards.iter().for_each(|shard| shard.set_rules(rules));
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
        let mut frozen: Vec<(String, Option<FrozenPart>)> = Vec::with_capacity(self.shards.len());
        for (shard, number) in self.shards.iter().zip(0..) {
            let is_retained = is_saved(number) && shard.may_retain_part();
            let part = if is_retained { None } else { Some(shard.freeze()?) };
            frozen.push((shard.id().to_owned(), part));
        }
        let update = |(shard, part): (String, Option<FrozenPart>)| match part {
            Some(part) => PartUpdate::Write(part().into_snapshot_part(shard)),
            None => PartUpdate::Retain(shard),
        };
        Ok(Box::new(move || frozen.into_iter().map(update).collect()))
    }

    fn restore(&self, index: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError> {
        let mut by_shard: BTreeMap<&str, &SnapshotPart> = parts.iter().map(|part| (part.name.as_str(), part)).collect();
        if by_shard.len() < parts.len() {
            return Err(StateMachineError("a shard has two parts in the snapshot".to_owned()));
        }
        let mut restored = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let part = by_shard.remove(shard.id());
            let part = part.ok_or_else(|| StateMachineError(format!("the snapshot lacks shard {}", shard.id())))?;
            let part = ShardPart::decode(&part.chunks)?;
            restored.push((shard.read_part(&part)?, part.state));
        }
        if let Some(other) = by_shard.keys().next() {
            return Err(StateMachineError(format!("the snapshot has shard {other}, which the group does not have")));
        }
        // All parts could be read: the states change together or not at all.
        for (shard, (read, state)) in self.shards.iter().zip(restored) {
            shard.install_part(index, read, state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
