//! The state of a shard at a checkpoint: digested, and kept encoded for a while, for replicas where the shard has failed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::shard::{FrozenShard, ShardState};
use holdfast_replication::run_blocking;
use holdfast_supervise::spawn_temporary;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::sleep;

use super::ShardMachine;
use super::health::SectionList;

/// How long the encoded state is kept. Whoever wants it asks within seconds.
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

/// The state of the shard there; all are empty where it has failed.
#[derive(Debug, Default)]
struct CheckpointState {
    /// Until it is encoded.
    frozen: Option<FrozenShard>,
    digest: Option<Bytes>,
    chunks: Option<Vec<Bytes>>,
}

impl Checkpoint {
    fn new(index: u64, from: Option<u64>, frozen: Option<FrozenShard>) -> Self {
        let state = Mutex::new(CheckpointState { frozen, ..CheckpointState::default() });
        Self { index, from, state }
    }

    /// Returns the digest of the state, once it is encoded.
    pub(crate) fn digest(&self) -> Option<Bytes> {
        self.state.lock().digest.clone()
    }

    /// Encodes the state, if there is one.
    fn encode(&self) {
        let frozen = self.state.lock().frozen.take();
        let Some(frozen) = frozen else { return };
        let chunks: Vec<Bytes> = run_blocking(|| frozen.encode()).into_iter().map(Bytes::from).collect();
        let digest = digest_of(&chunks);
        let mut state = self.state.lock();
        (state.digest, state.chunks) = (Some(digest), Some(chunks));
    }

    /// Encodes the state in the background, if there is one, and drops the encoded state later. One that a later
    /// checkpoint has replaced is dropped with it.
    pub(crate) fn encode_in_background(self: &Arc<Self>) {
        if self.state.lock().frozen.is_none() {
            return;
        }
        let weak = Arc::downgrade(self);
        spawn_temporary("checkpoint", async move {
            if let Some(checkpoint) = weak.upgrade() {
                checkpoint.encode();
            }
            sleep(RETENTION).await;
            if let Some(checkpoint) = weak.upgrade() {
                checkpoint.state.lock().chunks = None;
            }
        });
    }
}

/// Returns the SHA-256 of the chunks of a state.
pub(crate) fn digest_of(chunks: &[impl AsRef<[u8]>]) -> Bytes {
    let mut hasher = Sha256::new();
    chunks.iter().for_each(|chunk| hasher.update(chunk));
    Bytes::copy_from_slice(&hasher.finalize())
}

impl ShardMachine {
    /// Freezes the state at a checkpoint; see [`holdfast_replication::StateMachine::checkpoint`]. Without a state, what
    /// was kept aside begins behind the checkpoint, if some of it was dropped: that suffices for the state of another
    /// replica there.
    pub(crate) fn checkpoint(&self, index: u64, from: Option<u64>) {
        let mut inner = self.inner.lock();
        let frozen = inner.core.as_ref().map(ShardState::freeze);
        if frozen.is_none() && inner.backlog.is_incomplete() {
            (inner.kept, inner.backlog) = (None, SectionList::after(index));
        }
        drop(inner);
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

    /// Returns the encoded state at the checkpoint of this index, if it is the latest one and not long ago.
    pub(crate) fn checkpoint_chunks(&self, index: u64) -> Option<Vec<Bytes>> {
        self.checkpoint_at(index)?.state.lock().chunks.clone()
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
    use crate::testing;

    fn apply(machine: &ShardMachine, index: u64) {
        let header = EntryHeader { term: 1, index, rules: 1, now_ms: index, wall_ms: index };
        let commands = [Bytes::from(codec::encode(&Command::Locks(testing::open_namespace())))];
        assert!(machine.apply(header, &commands, ReplyMode::Skip).is_ok());
    }

    fn machine() -> ShardMachine {
        ShardMachine::new(Application::Locks, "locks_00", None, None)
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_with_the_same_sections_have_the_same_digest_and_the_encoded_state_goes_after_a_minute() {
        let [one, other] = [machine(), machine()];
        apply(&one, 3);
        apply(&other, 3);
        for machine in [&one, &other] {
            machine.checkpoint(4, None);
            assert_eq!(machine.checkpoint_digest(4), None);
            machine.latest_checkpoint().expect("there is one").encode_in_background();
        }
        // What comes later is not in it.
        apply(&one, 5);
        while one.checkpoint_digest(4).is_none() || other.checkpoint_digest(4).is_none() {
            yield_now().await;
        }
        let digest = one.checkpoint_digest(4).expect("it is encoded");
        assert_eq!(other.checkpoint_digest(4), Some(digest.clone()));
        assert_eq!(digest_of(&one.checkpoint_chunks(4).expect("it is there")), digest);
        assert_eq!((one.checkpoint_digest(3), one.checkpoint_digest(5)), (None, None));
        advance(RETENTION + Duration::from_secs(1)).await;
        while one.checkpoint_chunks(4).is_some() {
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
        assert_eq!((outage.history_end, outage.failed_entry), (5, failed_entry));
        let early = failed.adopt(outage.epoch, &other, 4).expect_err("entry 5 is missing");
        assert!(early.0.contains("not kept"), "{early}");
        apply(&other, 8);
        let missing = failed.adopt(outage.epoch, &other, 8).expect("all are there");
        assert_eq!(missing.iter().map(|(header, _)| header.index).collect::<Vec<_>>(), [9, 11]);
        let again = failed.adopt(outage.epoch, &other, 8).expect("they stay until the state is in place");
        assert_eq!(again.len(), 2);
        apply(&other, 9);
        apply(&other, 11);
        assert!(failed.adopt(outage.epoch, &other, 11).expect("all are there").is_empty());
        assert!(failed.check_health().is_ok() && failed.clock_ms() == 11 && !failed.may_retain_part());
    }

    #[test]
    fn what_a_failed_shard_kept_begins_anew_at_a_checkpoint_if_it_was_too_much() {
        let [failed, other] = [machine(), machine()];
        failed.isolate(&FailedEntry { term: 1, index: 5, failure: ApplyFailure::invalid_entry("a bug".to_owned()) });
        let header = |index| EntryHeader { term: 1, index, ..EntryHeader::default() };
        let megabyte = [Bytes::from(vec![0; 1024 * 1024])];
        for index in 6..80 {
            assert!(failed.apply(header(index), &megabyte, ReplyMode::Skip).is_ok());
        }
        let outage = failed.broken().expect("it has failed");
        assert!(failed.adopt(outage.epoch, &other, 80).is_err(), "there were too many");
        failed.checkpoint(80, None);
        assert!(failed.apply(header(81), &megabyte, ReplyMode::Skip).is_ok());
        assert!(failed.adopt(outage.epoch, &other, 79).is_err(), "that state is of before the checkpoint");
        assert_eq!(failed.adopt(outage.epoch, &other, 80).expect("there is one").len(), 1);
    }
}
