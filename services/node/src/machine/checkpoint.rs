//! The state of a shard at a checkpoint: digested, and kept for a while, for replicas where the shard has failed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::shard::FrozenShard;
use holdfast_storage::{SnapshotPart, run_blocking};
use holdfast_supervise::spawn_temporary;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{ShardMachine, state_part};

/// How long the state is kept. Replicas that need it ask within seconds.
const RETENTION: Duration = Duration::from_secs(60);

/// A checkpoint that was applied here.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The index of its entry.
    pub(crate) index: u64,
    /// The replica whose state counts, if an operator has named one.
    pub(crate) from: Option<u64>,
    state: Mutex<CheckpointState>,
}

/// The state of the shard there; both are empty where it has failed.
#[derive(Debug, Default)]
struct CheckpointState {
    /// For a while. Its chunks are encoded as they are taken.
    frozen: Option<FrozenShard>,
    digest: Option<Bytes>,
}

impl Checkpoint {
    fn new(index: u64, from: Option<u64>, frozen: Option<FrozenShard>) -> Self {
        let state = Mutex::new(CheckpointState { frozen, ..CheckpointState::default() });
        Self { index, from, state }
    }

    /// Returns the digest of the state, once it is computed.
    pub(crate) fn digest(&self) -> Option<Bytes> {
        self.state.lock().digest.clone()
    }

    fn frozen(&self) -> Option<FrozenShard> {
        self.state.lock().frozen.clone()
    }

    /// Digests the state, if there is one, in the background, and drops it later. A state that a later checkpoint has
    /// replaced is dropped with its checkpoint.
    pub(crate) fn digest_in_background(self: &Arc<Self>) {
        let Some(frozen) = self.frozen() else { return };
        let weak = Arc::downgrade(self);
        spawn_temporary("checkpoint", async move {
            let digest = run_blocking(|| digest_of(frozen.chunks()));
            drop(frozen);
            if let Some(checkpoint) = weak.upgrade() {
                checkpoint.state.lock().digest = Some(digest);
            }
            sleep(RETENTION).await;
            if let Some(checkpoint) = weak.upgrade() {
                checkpoint.state.lock().frozen = None;
            }
        });
    }
}

/// Returns the SHA-256 of the chunks of a state.
pub(crate) fn digest_of(chunks: impl IntoIterator<Item: AsRef<[u8]>>) -> Bytes {
    let mut hasher = Sha256::new();
    chunks.into_iter().for_each(|chunk| hasher.update(chunk));
    Bytes::copy_from_slice(&hasher.finalize())
}

impl ShardMachine {
    /// Freezes the state at a checkpoint; see [`holdfast_replication::StateMachine::checkpoint`].
    pub(crate) fn checkpoint(&self, index: u64, from: Option<u64>) {
        let frozen = self.frozen_state();
        self.checkpoint.send_replace(Some(Arc::new(Checkpoint::new(index, from, frozen))));
    }

    /// Returns the latest checkpoint.
    pub(crate) fn latest_checkpoint(&self) -> Option<Arc<Checkpoint>> {
        self.checkpoint.borrow().clone()
    }

    /// Subscribes to the latest checkpoint.
    pub(crate) fn checkpoints(&self) -> watch::Receiver<Option<Arc<Checkpoint>>> {
        self.checkpoint.subscribe()
    }

    /// Returns the digest of the state at the checkpoint of this index; `None` if it is not the latest one.
    pub(crate) fn checkpoint_digest(&self, index: u64) -> Option<Bytes> {
        self.checkpoint_at(index)?.digest()
    }

    /// Returns the state at the checkpoint of this index, if it is the latest one and not long ago.
    pub(crate) fn checkpoint_state(&self, index: u64) -> Option<SnapshotPart> {
        Some(state_part(&self.shard, self.checkpoint_at(index)?.frozen()?))
    }

    fn checkpoint_at(&self, index: u64) -> Option<Arc<Checkpoint>> {
        self.latest_checkpoint().filter(|checkpoint| checkpoint.index == index)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Application, Command, codec};
    use holdfast_replication::{ApplyFailure, EntryHeader, FailedEntry, ReplyMode};
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;
    use crate::machine::{Adoption, DeferredSection, FailedHistory, Outage};
    use crate::testing;

    fn apply(machine: &ShardMachine, index: u64) {
        let header = EntryHeader { term: 1, index, rules: 1, now_ms: index, wall_ms: index };
        let commands = [Bytes::from(codec::encode(&Command::Locks(testing::open_namespace())))];
        testing::finish(machine.apply(header, &commands, ReplyMode::Skip).expect("it is sound"));
    }

    fn machine() -> ShardMachine {
        ShardMachine::new(Application::Locks, "locks_00", None, None)
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_with_the_same_sections_have_the_same_digest_and_the_state_goes_after_a_minute() {
        let [one, other] = [machine(), machine()];
        apply(&one, 3);
        apply(&other, 3);
        for machine in [&one, &other] {
            machine.checkpoint(4, None);
            assert_eq!(machine.checkpoint_digest(4), None);
            machine.latest_checkpoint().expect("there is one").digest_in_background();
        }
        // What comes later is not in it.
        apply(&one, 5);
        while one.checkpoint_digest(4).is_none() || other.checkpoint_digest(4).is_none() {
            yield_now().await;
        }
        let digest = one.checkpoint_digest(4).expect("it is computed");
        assert_eq!(other.checkpoint_digest(4), Some(digest.clone()));
        let chunks = one.checkpoint_state(4).expect("it is there").chunks();
        assert_eq!(digest_of(chunks.map(|chunk| chunk.expect("it is in memory"))), digest);
        assert_eq!((one.checkpoint_digest(3), one.checkpoint_digest(5)), (None, None));
        advance(RETENTION + Duration::from_secs(1)).await;
        while one.checkpoint_state(4).is_some() {
            yield_now().await;
        }
        assert_eq!(one.checkpoint_digest(4), Some(digest));
    }

    #[tokio::test]
    async fn a_failed_shard_takes_the_state_at_a_checkpoint_and_what_came_since_and_no_earlier_one() {
        let [failed, other] = [machine(), machine()];
        apply(&failed, 3);
        let failure = ApplyFailure::invalid_entry("a bug".to_owned());
        let failed_entry = FailedEntry { term: 1, index: 5, failure };
        failed.isolate(&failed_entry);
        for index in [7, 9, 11] {
            apply(&failed, index);
        }
        let outage = failed.broken().expect("it has failed");
        assert_eq!((outage.history_end, &outage.failed_entry), (5, &failed_entry));
        assert_eq!(adopt(&failed, &outage, &other, 4), Adoption::InLog(5), "entry 5 was not kept");
        apply(&other, 8);
        for _ in 0..2 {
            // They stay until the state is in place.
            let missing = missing(adopt(&failed, &outage, &other, 8));
            assert_eq!(missing.iter().map(|(header, _)| header.index).collect::<Vec<_>>(), [9, 11]);
        }
        apply(&other, 9);
        apply(&other, 11);
        assert_eq!(adopt(&failed, &outage, &other, 11), Adoption::Done);
        assert!(failed.check_health().is_ok() && failed.clock_ms() == 11 && !failed.may_retain_part());
        assert_eq!(adopt(&failed, &outage, &other, 11), Adoption::Stale, "it serves already");
    }

    fn adopt(failed: &ShardMachine, outage: &Outage, rebuilt: &ShardMachine, has: u64) -> Adoption {
        failed.adopt(outage.epoch, rebuilt, has).expect("there is a state")
    }

    fn missing(adoption: Adoption) -> Vec<DeferredSection> {
        match adoption {
            Adoption::Missing(sections) => sections,
            other => panic!("{other:?}"),
        }
    }

    /// A shard that failed at entry 5 and was given too much since, and the outage as it was before that.
    fn failed_with_too_much() -> (ShardMachine, Outage) {
        let failed = machine();
        failed.isolate(&FailedEntry { term: 1, index: 5, failure: ApplyFailure::invalid_entry("a bug".to_owned()) });
        let outage = failed.broken().expect("it has failed");
        let header = |index| EntryHeader { term: 1, index, ..EntryHeader::default() };
        let megabyte = [Bytes::from(vec![0; 1024 * 1024])];
        for index in 6..80 {
            testing::finish(failed.apply(header(index), &megabyte, ReplyMode::Skip).expect("it is kept"));
        }
        (failed, outage)
    }

    #[test]
    fn what_a_failed_shard_kept_begins_anew_if_it_was_too_much_and_the_log_has_the_rest() {
        let ((failed, outage), other) = (failed_with_too_much(), machine());
        let Adoption::InLog(until) = adopt(&failed, &outage, &other, 7) else { panic!("it was too much") };
        assert!((60..80).contains(&until), "{until}");
        let kept = missing(adopt(&failed, &outage, &other, until));
        let kept: Vec<u64> = kept.iter().map(|(header, _)| header.index).collect();
        assert_eq!(kept, (until + 1..80).collect::<Vec<_>>());
    }

    #[test]
    fn a_history_is_in_a_snapshot_only_if_what_was_kept_continues_it() {
        for is_known in [true, false] {
            let (failed, before) = failed_with_too_much();
            failed.checkpoint(80, None);
            let outage = if is_known { failed.broken().expect("it has failed") } else { before };
            failed.mark_failed(&outage, outage.failed_entry.clone(), Some(FailedHistory::default()));
            assert!(failed.broken().is_none() && failed.outage().is_some());
            assert_eq!(failed.can_freeze(), is_known, "the sections up to {} are known", outage.history_end);
        }
    }
}
