//! The states of a group's shards, as the group's log changes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::codec;
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, FailedEntry, FrozenState, ReplyMode, StateMachine,
    StateMachineError,
};

use crate::machine::ShardMachine;

/// The shards of a group; the index of a shard is its number in the group's log.
pub struct GroupMachine {
    shards: Vec<Arc<ShardMachine>>,
}

/// The first chunk of a snapshot: the shards in order of their ids, each with the number of chunks of its state, and of
/// its kept sections. Shards are named, so that a snapshot of other shards is never taken for one of these.
type Manifest = Vec<(String, u32, u32)>;

/// A shard in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its state, in chunks of at most 1 MiB; none if it has no earlier state than that of an empty shard.
    pub(crate) state: Vec<Bytes>,
    /// The sections since that state, if the shard failed at one of them here. See `FailedHistory`.
    pub(crate) kept: Vec<Bytes>,
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

    fn freeze(&self) -> Result<FrozenState, StateMachineError> {
        let frozen = self.shards.iter().map(|shard| Ok((shard.id().to_owned(), shard.freeze()?)));
        let frozen = frozen.collect::<Result<Vec<_>, StateMachineError>>()?;
        Ok(Box::new(move || join(frozen.into_iter().map(|(shard, frozen)| (shard, frozen())).collect())))
    }

    fn restore(&self, index: u64, chunks: &[Bytes]) -> Result<(), StateMachineError> {
        let mut parts = split(chunks)?;
        let mut restored = Vec::with_capacity(self.shards.len());
        for shard in &self.shards {
            let part = parts.remove(shard.id());
            let part = part.ok_or_else(|| StateMachineError(format!("the snapshot lacks shard {}", shard.id())))?;
            restored.push((shard.read_part(&part)?, part.state));
        }
        if let Some(other) = parts.keys().next() {
            return Err(StateMachineError(format!("the snapshot has shard {other}, which the group does not have")));
        }
        // All parts could be read: the states change together or not at all.
        for (shard, (read, state)) in self.shards.iter().zip(restored) {
            shard.install_part(index, read, state)?;
        }
        Ok(())
    }
}

/// Joins the parts of shards, in any order, to the chunks of their group.
pub(crate) fn join(mut parts: Vec<(String, Part)>) -> Vec<Bytes> {
    parts.sort_by(|(left, _), (right, _)| left.cmp(right));
    // A part has at most some thousand chunks of 1 MiB.
    let count = |chunks: &[Bytes]| u32::try_from(chunks.len()).unwrap_or(u32::MAX);
    let manifest: Manifest =
        parts.iter().map(|(shard, part)| (shard.clone(), count(&part.state), count(&part.kept))).collect();
    let first = Bytes::from(codec::encode(&manifest));
    let chunks = parts.into_iter().flat_map(|(_, part)| part.state.into_iter().chain(part.kept));
    std::iter::once(first).chain(chunks).collect()
}

/// Splits the chunks of a group into the parts of its shards, by shard id.
///
/// # Errors
/// When the chunks do not begin with a manifest that describes them.
pub(crate) fn split(chunks: &[Bytes]) -> Result<BTreeMap<String, Part>, StateMachineError> {
    let damaged = |reason: String| StateMachineError(format!("the snapshot of the group can't be read: {reason}"));
    let (first, mut rest) = chunks.split_first().ok_or_else(|| damaged("it is empty".to_owned()))?;
    let manifest: Manifest = codec::decode(first).map_err(|error| damaged(error.to_string()))?;
    let mut take = |count: u32, shard: &str| {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (taken, after) =
            rest.split_at_checked(count).ok_or_else(|| damaged(format!("the part of shard {shard} is cut short")))?;
        rest = after;
        Ok(taken.to_vec())
    };
    let mut parts = BTreeMap::new();
    for (shard, state, kept) in manifest {
        let part = Part { state: take(state, &shard)?, kept: take(kept, &shard)? };
        if parts.insert(shard, part).is_some() {
            return Err(damaged("a shard has two parts".to_owned()));
        }
    }
    if rest.is_empty() { Ok(parts) } else { Err(damaged("something follows the last part".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(names: &[&'static str]) -> Vec<Bytes> {
        names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect()
    }

    #[test]
    fn parts_are_found_again_whatever_their_order() {
        let failed = Part { state: chunks(&["b1", "b2"]), kept: chunks(&["k1"]) };
        let healthy = Part { state: chunks(&["a1"]), kept: Vec::new() };
        let joined = join(vec![("b".to_owned(), failed.clone()), ("a".to_owned(), healthy.clone())]);
        let split = split(&joined).unwrap();
        assert_eq!((&split["a"], &split["b"]), (&healthy, &failed));
    }

    #[test]
    fn chunks_that_are_missing_or_too_many_are_refused() {
        let part = Part { state: chunks(&["a1"]), kept: chunks(&["a2"]) };
        let joined = join(vec![("a".to_owned(), part)]);
        for wrong in [&joined[..0], &joined[..2], &[&joined[..], &chunks(&["more"])[..]].concat()] {
            assert!(split(wrong).is_err());
        }
        assert!(split(&chunks(&["no manifest"])).is_err());
    }
}
