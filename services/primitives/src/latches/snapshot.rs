//! Latches in a snapshot: each latch, and then its done jobs in pieces.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::done_jobs::DoneJobs;
use super::{Latch, LatchFacts, Latches};
use crate::codec::DecodeError;
use crate::{Path, Revision};

/// Number of ids, or of words of bits, in one item.
const JOBS_PER_ITEM: usize = 1_024;

/// The latches at one entry. They are shared with the state, which copies what it changes.
#[derive(Debug)]
pub struct FrozenLatches(Vec<(Arc<Path>, Arc<Latch>)>);

/// What of some latches is written next.
#[derive(Default)]
pub struct LatchCursor {
    /// The position of the latch.
    latch: usize,
    /// Whether its first item is written.
    is_begun: bool,
    /// The last id that is written; empty before the first one.
    last_id: String,
    /// Number of words that are written.
    words: usize,
}

/// An item of a snapshot. The serialized form is stored: variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub enum LatchItem {
    /// A latch. Its jobs follow.
    Latch(Path, LatchFacts),
    /// Ids of the preceding latch, in order.
    Ids(Vec<String>),
    /// Bits of the numbers of the preceding latch, from the lowest on.
    Words(Vec<u64>),
}

impl LatchItem {
    /// Makes the instants of the shard clock later by a time.
    pub fn delay(&mut self, by_ms: u64) {
        if let Self::Latch(_, facts) = self {
            facts.deadline_ms = facts.deadline_ms.saturating_add(by_ms);
        }
    }
}

impl Latches {
    /// Returns the table as it is now, for a snapshot.
    pub fn freeze(&self) -> FrozenLatches {
        FrozenLatches(self.by_path.iter().map(|(path, latch)| (Arc::clone(path), Arc::clone(latch))).collect())
    }

    /// Adds an item of a snapshot; `now` is the revision of the shard.
    pub fn restore(&mut self, item: LatchItem, now: Revision) -> Result<(), DecodeError> {
        match item {
            LatchItem::Latch(path, facts) => {
                let is_next = self.by_path.last_key_value().is_none_or(|(last, _)| **last < path);
                ensure(is_next && !path.0.is_empty(), "latches are out of order")?;
                ensure(facts.id <= facts.revision && facts.revision <= now, "a latch is from the future")?;
                ensure(!self.due.contains_key(&(facts.deadline_ms, facts.id)), "two latches have one id")?;
                let done = DoneJobs::new(facts.ids);
                self.insert(Arc::new(path), Latch { facts, done });
                Ok(())
            }
            LatchItem::Ids(ids) => self.restore_jobs(|done| {
                let DoneJobs::Named(names) = done else { return false };
                ids.iter().all(|id| names.insert(id))
            }),
            LatchItem::Words(words) => self.restore_jobs(|done| {
                let DoneJobs::Indexed(numbers) = done else { return false };
                numbers.restore(&words);
                true
            }),
        }
    }

    /// Adds jobs to the last latch.
    fn restore_jobs(&mut self, add: impl FnOnce(&mut DoneJobs) -> bool) -> Result<(), DecodeError> {
        let path = self.by_path.last_key_value().map(|(path, _)| Arc::clone(path));
        let path = path.ok_or(DecodeError::Snapshot("jobs have no latch"))?;
        let fits = self.change(&path, |latch| {
            let fits = add(&mut latch.done);
            let is_within = match &latch.done {
                DoneJobs::Named(_) => true,
                DoneJobs::Indexed(numbers) => numbers.last().is_none_or(|last| last < latch.facts.total),
            };
            fits && is_within && latch.done.len() <= latch.facts.total
        });
        ensure(fits == Some(true), "a latch has jobs that it can't have")
    }

    /// Checks conditions that require all jobs.
    pub fn finish_restore(&self) -> Result<(), DecodeError> {
        let is_done = |latch: &Latch| latch.done.len() == latch.facts.total;
        let fits = |latch: &Arc<Latch>| match latch.facts.status {
            crate::LatchStatus::Active => !is_done(latch),
            crate::LatchStatus::Completed => is_done(latch),
            crate::LatchStatus::Expired => true,
        };
        ensure(self.by_path.values().all(fits), "a latch has another status than its jobs")
    }
}

impl FrozenLatches {
    /// Returns the item at a place, and moves the place on; `None` at the end.
    pub fn next_item(&self, cursor: &mut LatchCursor) -> Option<LatchItem> {
        loop {
            let (path, latch) = self.0.get(cursor.latch)?;
            if !cursor.is_begun {
                cursor.is_begun = true;
                return Some(LatchItem::Latch(Path::clone(path), latch.facts.clone()));
            }
            if let Some(jobs) = cursor.next_jobs(&latch.done) {
                return Some(jobs);
            }
            *cursor = LatchCursor { latch: cursor.latch + 1, ..LatchCursor::default() };
        }
    }
}

impl LatchCursor {
    fn next_jobs(&mut self, done: &DoneJobs) -> Option<LatchItem> {
        match done {
            DoneJobs::Named(names) => {
                let ids = names.iter_after(&self.last_id).take(JOBS_PER_ITEM);
                let ids: Vec<String> = ids.map(str::to_owned).collect();
                self.last_id.clone_from(ids.last()?);
                Some(LatchItem::Ids(ids))
            }
            DoneJobs::Indexed(numbers) => {
                let words = numbers.words().get(self.words..)?.chunks(JOBS_PER_ITEM).next()?;
                self.words += words.len();
                Some(LatchItem::Words(words.to_vec()))
            }
        }
    }
}

fn ensure(fits: bool, otherwise: &'static str) -> Result<(), DecodeError> {
    if fits { Ok(()) } else { Err(DecodeError::Snapshot(otherwise)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::EncodedMetadata;
    use crate::{Jobs, LatchIds, LatchStatus};

    const TOTAL: u64 = 1_000_000;

    fn latch(id: Revision, ids: LatchIds, jobs: &Jobs) -> Latch {
        let mut done = DoneJobs::new(ids);
        done.add(jobs, TOTAL);
        let facts = LatchFacts {
            id,
            total: TOTAL,
            first_total: TOTAL,
            ids,
            status: LatchStatus::Active,
            expires_in_ms: 1,
            retain_ms: 1,
            deadline_ms: 1,
            finished_at_ms: None,
            description: String::new(),
            metadata: EncodedMetadata::default(),
            revision: id,
        };
        Latch { facts, done }
    }

    #[test]
    fn latches_come_in_items_of_bounded_length_that_restore_them() {
        let names: Vec<String> = (0..2_500).map(|number| format!("job-{number:04}")).collect();
        let mut latches = Latches::default();
        latches.insert(Arc::new(Path::flat("a")), latch(1, LatchIds::Named, &Jobs::Named(names.clone())));
        latches.insert(Arc::new(Path::flat("b")), latch(2, LatchIds::Indexed, &Jobs::Indexed(vec![(0, 199_999)])));
        latches.insert(Arc::new(Path::flat("c")), latch(3, LatchIds::Named, &Jobs::Named(Vec::new())));
        let (frozen, mut cursor, mut restored) = (latches.freeze(), LatchCursor::default(), Latches::default());
        let mut lengths = Vec::new();
        while let Some(item) = frozen.next_item(&mut cursor) {
            lengths.push(match &item {
                LatchItem::Latch(..) => 0,
                LatchItem::Ids(ids) => ids.len(),
                LatchItem::Words(words) => words.len(),
            });
            restored.restore(item, 3).unwrap();
        }
        assert_eq!(lengths, [0, 1_024, 1_024, 452, 0, 1_024, 1_024, 1_024, 53, 0]);
        restored.verify();
        let done: Vec<&DoneJobs> = restored.by_path.values().map(|latch| &latch.done).collect();
        let [DoneJobs::Named(first), DoneJobs::Indexed(second), DoneJobs::Named(_)] = done[..] else {
            panic!("three latches, the second of numbers")
        };
        assert!(first.iter_after("").eq(names.iter().map(String::as_str)));
        assert_eq!((done[1].len(), second.last(), done[2].len()), (200_000, Some(199_999), 0));
    }
}
