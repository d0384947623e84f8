//! openraft's log and votes, over one node's shared store.
//!
//! Entries go into the cache (readable at once) and to the committer (durable later); `append` does not wait. Recent
//! entries stay in the cache for replication and apply, so that normal operation reads nothing back from disk.

use std::fmt::Debug;
use std::future::ready;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use futures::stream::{self, Stream, TryStreamExt};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_storage::{LogRow, ReplicaStore, StorageError};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::encoded::encode_entry;
use crate::error::to_io;
use crate::log_cache::LogCache;
use crate::types::{Entry, LogId, TypeConfig, Vote, decode, decode_entry, encode};

/// Maximum bytes read at once for a follower, which limits the size of an append; but at least one entry.
const MAX_APPEND_BYTES: usize = 256 * 1024;
/// Maximum bytes read at once for apply; but at least one entry.
const MAX_APPLY_BYTES: usize = 1024 * 1024;

/// The log of one replica. Clones share it.
#[derive(Clone)]
pub struct LogStore {
    store: ReplicaStore,
    cache: Arc<Mutex<LogCache>>,
    voted: VotedTerm,
}

/// The term of the latest vote, published before it is written, so before it can leave this node. A leader that still
/// finds its own term here after a read knows that the read precedes any vote of this node for another leader.
#[derive(Clone, Default)]
pub(crate) struct VotedTerm(Arc<AtomicU64>);

impl VotedTerm {
    fn publish(&self, term: u64) {
        self.0.fetch_max(term, Ordering::SeqCst);
    }

    /// Returns true if no vote of a later term was given. Everything that the caller read before was then read before
    /// any such vote.
    pub(crate) fn is_still(&self, term: u64) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst) == term
    }
}

impl LogStore {
    /// Reads the state of the log and the vote.
    ///
    /// # Errors
    /// When the disk can't be read or holds damaged data.
    pub fn open(store: ReplicaStore) -> Result<Self, io::Error> {
        let purged: Option<LogId> = store.purged().map_err(to_io)?.map(|bytes| decode(&bytes)).transpose()?;
        let vote: Option<Vote> = store.vote().map_err(to_io)?.map(|bytes| decode(&bytes)).transpose()?;
        let last_entry: Option<Entry> =
            store.last().map_err(to_io)?.map(|(_, bytes)| decode_entry(&bytes)).transpose()?;
        let last = last_entry.map(|entry| entry.log_id()).or(purged);
        let voted = VotedTerm::default();
        voted.publish(vote.map_or(0, |vote| vote.leader_id.term));
        let tail = LogCache::new(purged, last, vote);
        Ok(Self { store, cache: Arc::new(Mutex::new(tail)), voted })
    }

    /// Returns a handle to the term of the latest vote.
    pub(crate) fn voted(&self) -> VotedTerm {
        self.voted.clone()
    }

    /// Returns entries of `from..to`, as far as they exist: at least one, otherwise at most `max_bytes`.
    pub(crate) fn read(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<Entry>, io::Error> {
        let (from, to, first) = {
            let tail = self.cache.lock();
            let from = from.max(tail.purged.map_or(0, |id| id.index + 1));
            let to = to.min(tail.last.map_or(0, |id| id.index + 1));
            (from, to, tail.first)
        };
        if from >= to {
            return Ok(Vec::new());
        }
        if from < first {
            return self.read_disk(from, to.min(first), to, max_bytes);
        }
        let tail = self.cache.lock();
        // The cache may have moved on between the two checks; entries that left it are on disk.
        if from < tail.first {
            let first = tail.first;
            drop(tail);
            return self.read_disk(from, to.min(first), to, max_bytes);
        }
        Ok(tail.slice(from, to, max_bytes))
    }

    /// Reads `from..middle` from disk and, if space remains, `middle..to` from the cache.
    fn read_disk(&self, from: u64, middle: u64, to: u64, max_bytes: usize) -> Result<Vec<Entry>, io::Error> {
        let rows = self.store.read(from, middle, max_bytes).map_err(to_io)?;
        // If the disk has no entries and nothing was ever purged, the log begins in the cache.
        let complete = match rows.last() {
            Some((index, _)) => index + 1 == middle,
            None => self.cache.lock().purged.is_none(),
        };
        let mut entries = Vec::with_capacity(rows.len());
        for (_, bytes) in &rows {
            entries.push(decode_entry(bytes)?);
        }
        let used: usize = rows.iter().map(|(_, bytes)| bytes.len()).sum();
        if complete && middle < to && used < max_bytes {
            entries.extend(self.read(middle, to, max_bytes - used)?);
        }
        Ok(entries)
    }

    async fn wait(receiver: oneshot::Receiver<Result<(), StorageError>>) -> Result<(), io::Error> {
        match receiver.await {
            Ok(result) => result.map_err(to_io),
            Err(_) => Err(io::Error::other("the store was closed before the write was done")),
        }
    }
}

fn to_index_range(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let range = to_index_range(&range);
        self.read(range.start, range.end, usize::MAX)
    }

    async fn entries_stream<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend {
        // After a restart the range may be the whole log.
        let (log, range) = (self.clone(), to_index_range(&range));
        let piece = move |next: u64| {
            let read = (next < range.end).then(|| log.read(next, range.end, MAX_APPLY_BYTES));
            let read = read.transpose().map(|entries| {
                let entries = entries.unwrap_or_default();
                let after = entries.last().map(|last| last.log_id().index + 1);
                after.map(|after| (stream::iter(entries.into_iter().map(Ok::<_, io::Error>)), after))
            });
            ready(read)
        };
        stream::try_unfold(range.start, piece).try_flatten()
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, MAX_APPEND_BYTES)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.cache.lock().vote)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let tail = self.cache.lock();
        Ok(LogState { last_purged_log_id: tail.purged, last_log_id: tail.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.voted.publish(vote.leader_id.term);
        let (done, saved) = oneshot::channel();
        let report = Box::new(move |result| {
            // The receiver is dropped only when the replica is stopping.
            let _ = done.send(result);
        });
        self.store.save_vote(encode(vote), report);
        if !is_enabled(Mutation::VoteNotSynced) {
            Self::wait(saved).await?;
        }
        self.cache.lock().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.store.ready().await;
        let mut rows = Vec::new();
        let (next, truncations) = {
            let mut tail = self.cache.lock();
            for entry in entries {
                let (head, body) = encode_entry(&entry);
                let row = LogRow { index: entry.log_id().index, head, body };
                tail.push(entry, row.bytes());
                rows.push(row);
            }
            (tail.last.map_or(0, |id| id.index + 1), tail.truncations)
        };
        let tail = Arc::clone(&self.cache);
        let mut callback = Some(callback);
        if is_enabled(Mutation::AnswerBeforeSync)
            && let Some(callback) = callback.take()
        {
            callback.io_completed(Ok(()));
        }
        let done = Box::new(move |result: Result<(), StorageError>| {
            if result.is_ok() {
                tail.lock().mark_durable(next, truncations);
            }
            if let Some(callback) = callback {
                callback.io_completed(result.map_err(to_io));
            }
        });
        self.store.append(rows, done);
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |id| id.index + 1);
        self.cache.lock().truncate_from(from, last);
        // Ordered with the appends around it; a failure poisons the store, which stops the replica.
        self.store.truncate_from(from, Box::new(|_| {}));
        Ok(())
    }

    async fn purge(&mut self, id: LogId) -> Result<(), io::Error> {
        self.cache.lock().purge_to(id);
        self.store.purge_to(id.index, encode(&id), Box::new(|_| {}));
        Ok(())
    }
}
