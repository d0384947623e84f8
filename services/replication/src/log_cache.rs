//! The end of a log in memory: entries that are not durable yet, and recent ones.

use std::collections::VecDeque;

use openraft::entry::RaftEntry;

use crate::mutations::SinksByIndex;
use crate::types::{Entry, LogId, Vote};

/// Durable entries kept in memory.
const MAX_CACHED_ENTRIES: usize = 2_048;
/// Bytes of durable entries kept in memory.
const MAX_CACHED_BYTES: usize = 4 * 1024 * 1024;

/// State of a log and its vote, and the last entries.
pub(crate) struct LogCache {
    /// Consecutive entries with their encoded size; earlier entries are on disk only.
    entries: VecDeque<(Entry, usize)>,
    bytes: usize,
    /// Index of the first entry in `entries`, or of the next entry if there is none.
    pub(crate) first: u64,
    /// Entries up to this index are durable and may leave the cache.
    durable: u64,
    /// Incremented with each truncation: the completion of an append before it says nothing about indexes after it.
    pub(crate) truncations: u64,
    pub(crate) purged: Option<LogId>,
    pub(crate) last: Option<LogId>,
    pub(crate) vote: Option<Vote>,
    sinks: SinksByIndex,
}

impl LogCache {
    /// Creates an empty cache for a log in this state.
    pub(crate) fn new(purged: Option<LogId>, last: Option<LogId>, vote: Option<Vote>) -> Self {
        let next = last.map_or(0, |id| id.index + 1);
        let (entries, sinks) = (VecDeque::new(), SinksByIndex::default());
        Self { entries, bytes: 0, first: next, durable: next, truncations: 0, purged, last, vote, sinks }
    }

    /// Returns entries of `from..to`, which must not begin before the cache: at least one, otherwise at most
    /// `max_bytes`.
    pub(crate) fn slice(&self, from: u64, to: u64, max_bytes: usize) -> Vec<Entry> {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let count = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut left = max_bytes;
        let mut entries = Vec::new();
        for (entry, size) in self.entries.iter().skip(skip).take(count) {
            if !entries.is_empty() && *size > left {
                break;
            }
            left = left.saturating_sub(*size);
            entries.push(entry.clone());
        }
        entries
    }

    /// Appends the entry that follows the last one.
    pub(crate) fn push(&mut self, mut entry: Entry, size: usize) {
        self.sinks.bind(&mut entry);
        let id = entry.log_id();
        if self.entries.is_empty() {
            self.first = id.index;
        }
        let expected = self.first + self.entries.len() as u64;
        assert_eq!(id.index, expected, "an append must follow the last entry");
        self.last = Some(id);
        self.bytes += size;
        self.entries.push_back((entry, size));
    }

    /// Records that an append up to `next`, made after this many truncations, is durable.
    pub(crate) fn mark_durable(&mut self, next: u64, truncations: u64) {
        if self.truncations == truncations {
            self.durable = self.durable.max(next);
            self.trim();
        }
    }

    fn trim(&mut self) {
        while self.first < self.durable && (self.entries.len() > MAX_CACHED_ENTRIES || self.bytes > MAX_CACHED_BYTES) {
            let Some((_, size)) = self.entries.pop_front() else { break };
            self.bytes -= size;
            self.first += 1;
        }
    }

    /// Removes the entry at `index` and all later ones; `last` becomes the last entry.
    pub(crate) fn truncate_from(&mut self, index: u64, last: Option<LogId>) {
        if self.last.is_none_or(|present| present.index < index) {
            return;
        }
        while self.first + self.entries.len() as u64 > index {
            let Some((_, size)) = self.entries.pop_back() else { break };
            self.bytes -= size;
        }
        if self.entries.is_empty() {
            self.first = index;
        }
        self.durable = self.durable.min(index);
        self.truncations += 1;
        self.last = last;
    }

    /// Removes everything up to and including an entry, which may lie beyond the last one.
    pub(crate) fn purge_to(&mut self, id: LogId) {
        while self.first <= id.index {
            match self.entries.pop_front() {
                Some((_, size)) => self.bytes -= size,
                None => {
                    self.first = id.index + 1;
                    break;
                }
            }
            self.first += 1;
        }
        self.purged = Some(id);
        if self.last.is_none_or(|last| last.index < id.index) {
            self.last = Some(id);
            self.durable = self.durable.max(id.index + 1);
        }
    }
}
