//! The entries that replicas apply: one list for each shard, and the position of each replica in it.
//!
//! Invariant: the first replica to apply an entry determines it; every other one must apply the same bytes there, give
//! the same replies and reach the same state, also from a snapshot and after a restart. So no entry that was applied
//! anywhere can be lost or replaced unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::shard::ShardState;
use holdfast_core::{Command, Reply, codec};
use holdfast_node::ApplyObserver;
use holdfast_replication::EntryHeader;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::world::now;

pub(crate) type StateDigest = [u8; 32];

/// States are digested whenever the clock shows a multiple of so many milliseconds: on every replica the same ones.
const DIGEST_INTERVAL_MS: u64 = 8;

/// Distinguishes states that differ, except if the entries between them changed nothing; cheaper than a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Checkpoint {
    clock_ms: u64,
    revision: u64,
    /// Holds, waiting requests and sessions.
    live_items: usize,
    /// Messages for other shards.
    outbox_messages: usize,
}

/// How much of a shard has been applied anywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShardProgress {
    /// Whole entries.
    pub(crate) entries: usize,
    /// Commands of the next entry, those of lists one by one. At least 1 once it was begun.
    pub(crate) commands: usize,
}

/// An entry as the first replica applied it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) stamp: EntryHeader,
    pub(crate) commands: Vec<Bytes>,
    pub(crate) replies: Vec<Bytes>,
    /// Of the state after it, for some entries.
    pub(crate) state: Option<StateDigest>,
    pub(crate) checkpoint: Checkpoint,
    /// Simulated time at which a replica first applied it.
    pub(crate) applied_at: Duration,
}

/// A snapshot that a replica took over.
#[derive(Debug, Clone)]
pub(crate) struct RestoredSnapshot {
    pub(crate) node: usize,
    /// How many entries may lead to it.
    pub(crate) possible_positions: BTreeSet<usize>,
    pub(crate) state: StateDigest,
}

impl Entry {
    fn to_lines(&self, which: &str) -> Vec<String> {
        let at = format!("{which} at {:.3}, clock {}", self.applied_at.as_secs_f64(), self.stamp.now_ms);
        let done = self.commands.iter().zip(&self.replies).map(|(command, reply)| {
            let (command, reply) = (codec::decode::<Command>(command), codec::decode::<Reply>(reply));
            format!("{at}: {command:?} -> {:?}", reply.map(|reply| (reply.outcome, reply.awaits)))
        });
        let done: Vec<String> = done.collect();
        if done.is_empty() { vec![at] } else { done }
    }
}

/// One shard's entries and replicas.
#[derive(Default)]
struct ShardLog {
    entries: Vec<Entry>,
    /// Commands of the next entry that a replica has applied. Readers may have seen their effects.
    begun: usize,
    /// The numbers of entries that lead to such a state.
    positions_by_checkpoint: BTreeMap<Checkpoint, BTreeSet<usize>>,
    /// How many entries each node's replica has applied. A restored state may have several positions, if the entries
    /// between them changed nothing.
    positions: BTreeMap<usize, BTreeSet<usize>>,
    restores: Vec<RestoredSnapshot>,
}

/// Everything that was applied.
pub(crate) struct ApplyLog {
    shards: Mutex<BTreeMap<String, ShardLog>>,
    violations: Mutex<Vec<String>>,
}

impl ApplyLog {
    pub(crate) fn new(shards: impl Iterator<Item = String>) -> Self {
        let shards = shards.map(|shard| (shard, ShardLog::default())).collect();
        Self { shards: Mutex::new(shards), violations: Mutex::default() }
    }

    /// How much of each shard has been applied anywhere.
    pub(crate) fn progress(&self) -> BTreeMap<String, ShardProgress> {
        let of_shard = |record: &ShardLog| ShardProgress { entries: record.entries.len(), commands: record.begun };
        self.shards.lock().iter().map(|(shard, record)| (shard.clone(), of_shard(record))).collect()
    }

    /// All entries of a shard.
    pub(crate) fn entries(&self, shard: &str) -> Vec<Entry> {
        self.shards.lock().get(shard).map(|record| record.entries.clone()).unwrap_or_default()
    }

    /// All snapshots of a shard that replicas took over.
    pub(crate) fn restores(&self, shard: &str) -> Vec<RestoredSnapshot> {
        self.shards.lock().get(shard).map(|record| record.restores.clone()).unwrap_or_default()
    }

    /// The first shard that still has a hold, a waiting request or a session.
    pub(crate) fn first_non_empty(&self) -> Option<String> {
        let shards = self.shards.lock();
        let left = |(shard, record): (&String, &ShardLog)| {
            let left = record.entries.last().map_or(0, |entry| entry.checkpoint.live_items);
            (left > 0).then(|| format!("{shard} has {left} holds, waiting requests and sessions left"))
        };
        shards.iter().find_map(left)
    }

    pub(crate) fn shards(&self) -> Vec<String> {
        self.shards.lock().keys().cloned().collect()
    }

    /// Every entry of every shard, for people.
    pub(crate) fn to_lines(&self) -> Vec<String> {
        let shards = self.shards.lock();
        let entries = shards.iter().flat_map(|(shard, record)| {
            record
                .entries
                .iter()
                .enumerate()
                .flat_map(move |(at, entry)| entry.to_lines(&format!("{shard} entry {at}")))
        });
        entries.collect()
    }

    pub(crate) fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut *self.violations.lock())
    }

    fn record_violation(&self, what: String) {
        self.violations.lock().push(what);
    }

    fn with(&self, shard: &str, act: impl FnOnce(&mut ShardLog) -> Result<(), String>) {
        let mut shards = self.shards.lock();
        let record = shards.entry(shard.to_owned()).or_default();
        if let Err(what) = act(record) {
            self.record_violation(format!("[replicas equal] shard {shard}: {what}"));
        }
    }
}

impl ShardLog {
    fn initialized(&mut self, node: usize, mark: Checkpoint) {
        if self.entries.is_empty() {
            self.positions_by_checkpoint.entry(mark).or_default().insert(0);
        }
        self.positions.insert(node, BTreeSet::from([0]));
    }

    fn applied(&mut self, node: usize, entry: Entry) -> Result<(), String> {
        let before = self.positions.remove(&node).unwrap_or_default();
        let is_same = |known: &Entry| known.stamp == entry.stamp && known.commands == entry.commands;
        let fits: Vec<usize> = before.iter().copied().filter(|at| self.entries.get(*at).is_some_and(is_same)).collect();
        if fits.is_empty() && before.contains(&self.entries.len()) {
            self.entries.push(entry.clone());
            self.begun = 0;
            self.positions_by_checkpoint.entry(entry.checkpoint).or_default().insert(self.entries.len());
            self.positions.insert(node, BTreeSet::from([self.entries.len()]));
            return Ok(());
        }
        if fits.is_empty() {
            return Err(format!(
                "node {} applied another entry than others at one of {before:?} (of {}): {:?} with {} commands",
                node + 1,
                self.entries.len(),
                entry.stamp,
                entry.commands.len()
            ));
        }
        for at in &fits {
            let known = &self.entries[*at];
            if (&known.replies, known.state, known.checkpoint) != (&entry.replies, entry.state, entry.checkpoint) {
                return Err(format!("node {} came to another state or answer by entry {at}", node + 1));
            }
        }
        self.positions.insert(node, fits.into_iter().map(|at| at + 1).collect());
        Ok(())
    }

    /// A replica has applied so many commands of an entry, and is not done with it. This counts unless another replica
    /// is.
    fn progressed(&mut self, node: usize, stamp: EntryHeader, commands: usize) {
        let Some(positions) = self.positions.get(&node) else { return };
        let is_known = positions.iter().any(|at| self.entries.get(*at).is_some_and(|known| known.stamp == stamp));
        if !is_known && positions.contains(&self.entries.len()) {
            self.begun = self.begun.max(commands.max(1));
        }
    }

    fn restored(&mut self, node: usize, mark: Checkpoint, state: StateDigest) -> Result<(), String> {
        let Some(possible_positions) = self.positions_by_checkpoint.get(&mark).cloned() else {
            return Err(format!("node {} restored a snapshot of a state that no replica was ever in", node + 1));
        };
        self.positions.insert(node, possible_positions.clone());
        self.restores.push(RestoredSnapshot { node, possible_positions, state });
        Ok(())
    }
}

/// One run of one node, as it shows itself to the ledger.
pub(crate) struct NodeObserver {
    pub(crate) node: usize,
    pub(crate) apply_log: Arc<ApplyLog>,
}

impl ApplyObserver for NodeObserver {
    fn initialized(&self, shard: &str, state: &ShardState) {
        self.apply_log.with(shard, |record| {
            record.initialized(self.node, checkpoint(state));
            Ok(())
        });
    }

    fn applied(&self, shard: &str, stamp: EntryHeader, commands: &[Bytes], replies: &[Bytes], state: &ShardState) {
        let entry = Entry {
            stamp,
            commands: commands.to_vec(),
            replies: replies.to_vec(),
            state: stamp.now_ms.is_multiple_of(DIGEST_INTERVAL_MS).then(|| digest(state)),
            checkpoint: checkpoint(state),
            applied_at: now().unwrap_or_default(),
        };
        self.apply_log.with(shard, |record| record.applied(self.node, entry));
    }

    fn progressed(&self, shard: &str, stamp: EntryHeader, commands: usize) {
        self.apply_log.with(shard, |record| {
            record.progressed(self.node, stamp, commands);
            Ok(())
        });
    }

    fn restored(&self, shard: &str, state: &ShardState) {
        self.apply_log.with(shard, |record| record.restored(self.node, checkpoint(state), digest(state)));
    }
}

fn checkpoint(state: &ShardState) -> Checkpoint {
    let footprint = state.footprint();
    Checkpoint {
        clock_ms: state.clock_ms(),
        revision: state.revision(),
        live_items: footprint.holds + footprint.waits + footprint.sessions,
        outbox_messages: state.outbox().messages().len(),
    }
}

/// A digest of everything that the state has.
fn digest(state: &ShardState) -> StateDigest {
    digest_of(&state.snapshot())
}

/// Of a snapshot.
pub(crate) fn digest_of(chunks: &[Vec<u8>]) -> StateDigest {
    let mut hasher = Sha256::new();
    for chunk in chunks {
        hasher.update((chunk.len() as u64).to_be_bytes());
        hasher.update(chunk);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Checkpoint = Checkpoint { clock_ms: 0, revision: 0, live_items: 0, outbox_messages: 0 };

    fn stamp(index: u64) -> EntryHeader {
        EntryHeader { term: 1, index, ..EntryHeader::default() }
    }

    fn entry(index: u64) -> Entry {
        let checkpoint = Checkpoint { revision: index, ..BEFORE };
        let (commands, replies, applied_at) = (Vec::new(), Vec::new(), Duration::ZERO);
        Entry { stamp: stamp(index), commands, replies, state: None, checkpoint, applied_at }
    }

    #[test]
    fn only_an_entry_that_no_replica_is_done_with_is_begun() {
        let mut record = ShardLog::default();
        (0..2).for_each(|node| record.initialized(node, BEFORE));
        record.progressed(0, stamp(1), 0);
        assert_eq!(record.begun, 1, "the clock has advanced");
        record.progressed(0, stamp(1), 4);
        record.progressed(1, stamp(1), 2);
        assert_eq!(record.begun, 4);
        assert_eq!(record.applied(0, entry(1)), Ok(()));
        assert_eq!((record.entries.len(), record.begun), (1, 0));
        // A replica that lags behind shows nothing new.
        record.progressed(1, stamp(1), 4);
        assert_eq!(record.begun, 0);
        record.progressed(0, stamp(2), 2);
        assert_eq!(record.begun, 2);
    }
}
