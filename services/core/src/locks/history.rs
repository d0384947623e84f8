//! The retained events of a namespace.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use super::charge;
use crate::page::PageBudget;
use crate::{
    CommandError, Event, EventKind, FencingToken, MAX_EVENT_BYTES_EXAMINED, MAX_EVENTS_EXAMINED, Mode, Owner, Path,
    Revision, codec,
};

/// An event to encode: it has the same encoding as [`Event`] and borrows its content.
#[derive(Serialize)]
pub(super) struct EventRecord<'a> {
    pub(super) revision: Revision,
    pub(super) at_ms: u64,
    pub(super) kind: EventKind,
    pub(super) owner: Owner,
    pub(super) process_id: &'a str,
    pub(super) fencing_token: Option<FencingToken>,
    pub(super) claims: Vec<EventClaim<'a>>,
}

/// A [`Claim`] to encode.
#[derive(Serialize)]
pub(super) struct EventClaim<'a> {
    pub(super) path: Vec<&'a str>,
    pub(super) mode: Mode,
}

/// Number of events in a block.
const EVENTS_PER_BLOCK: usize = 64;

/// The latest events in order of revision. They stay encoded, because few are ever read. A clone shares the blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// All blocks but the last are full, and none is empty.
    blocks: VecDeque<Arc<Block>>,
    /// The number of evicted events in the first block.
    skipped: usize,
    len: usize,
    /// The charge of the retained events.
    bytes: u64,
    /// The revision of the last evicted event; 0 if there is none.
    compacted: Revision,
}

/// Concatenated encoded events.
#[derive(Clone, Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// The revision of each event, and the end of its bytes.
    ends: Vec<(Revision, usize)>,
}

impl Block {
    fn last(&self) -> Revision {
        self.ends.last().map_or(0, |(revision, _)| *revision)
    }

    fn start_of(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before].1)
    }

    fn bytes_of(&self, index: usize) -> &[u8] {
        &self.bytes[self.start_of(index)..self.ends[index].1]
    }

    fn events(&self) -> impl Iterator<Item = (Revision, &[u8])> {
        self.ends.iter().enumerate().map(|(index, (revision, _))| (*revision, self.bytes_of(index)))
    }

    /// Shares some of the events with a reader. Copies from a block that is not full: sharing it would make the next
    /// event copy all of it.
    fn share(self: &Arc<Self>, range: Range<usize>) -> (Arc<Self>, Range<usize>) {
        if self.ends.len() == EVENTS_PER_BLOCK {
            return (Arc::clone(self), range);
        }
        let begin = self.start_of(range.start);
        let ends: Vec<_> = self.ends[range].iter().map(|(revision, end)| (*revision, end - begin)).collect();
        let bytes = self.bytes[begin..begin + ends.last().map_or(0, |(_, end)| *end)].to_vec();
        let all = 0..ends.len();
        (Arc::new(Self { bytes, ends }), all)
    }
}

/// A page of events.
pub(super) struct EventPage {
    pub(super) events: Vec<Event>,
    pub(super) next_revision: Revision,
    pub(super) more: bool,
}

impl History {
    /// Appends an event, keeping at most `max` events and `max_bytes` of charge.
    pub(super) fn push(&mut self, event: &EventRecord<'_>, max: usize, max_bytes: u64) {
        self.push_bytes(event.revision, &codec::encode(event), max, max_bytes);
    }

    fn push_bytes(&mut self, revision: Revision, bytes: &[u8], max: usize, max_bytes: u64) {
        if self.blocks.back().is_none_or(|last| last.ends.len() == EVENTS_PER_BLOCK) {
            self.blocks.push_back(Arc::default());
        }
        let block = self.blocks.back_mut().map(Arc::make_mut).expect("it was just made");
        block.bytes.extend_from_slice(bytes);
        block.ends.push((revision, block.bytes.len()));
        if block.ends.len() == EVENTS_PER_BLOCK {
            block.bytes.shrink_to_fit();
        }
        self.len += 1;
        self.bytes += charge::event(bytes.len());
        if self.len > max {
            self.evict_first();
        }
        self.shrink_to(max_bytes);
    }

    /// Evicts the oldest events until at most `max_bytes` remain. Returns the bytes evicted.
    pub(super) fn shrink_to(&mut self, max_bytes: u64) -> u64 {
        let before = self.bytes;
        while self.bytes > max_bytes {
            self.evict_first();
        }
        before - self.bytes
    }

    /// Evicts the oldest events of at least `bytes`, and no more than needed, keeping about `kept` bytes. Returns the
    /// bytes evicted.
    pub(super) fn evict(&mut self, bytes: u64, kept: u64) -> u64 {
        self.shrink_to(self.bytes.saturating_sub(bytes).max(kept.min(self.bytes)))
    }

    /// Returns the charge of the events.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn evict_first(&mut self) {
        let Some(first) = self.blocks.front() else { return };
        self.compacted = first.ends[self.skipped].0;
        self.bytes -= charge::event(first.bytes_of(self.skipped).len());
        self.skipped += 1;
        self.len -= 1;
        if self.skipped == first.ends.len() {
            self.blocks.pop_front();
            self.skipped = 0;
        }
    }

    /// Appends an event of a snapshot. Returns false if it is out of order, exceeds `max`, or is no valid event.
    pub(super) fn restore(&mut self, revision: Revision, bytes: &[u8], max: usize) -> bool {
        let last = self.blocks.back().map_or(self.compacted, |block| block.last());
        let is_event = || codec::decode::<Event>(bytes).is_ok_and(|event| event.revision == revision);
        let fits = revision > last && self.len < max && is_event();
        if fits {
            self.push_bytes(revision, bytes, max, u64::MAX);
        }
        fits
    }

    pub(super) fn restore_compacted_revision(&mut self, forgotten: Revision) {
        self.compacted = forgotten;
    }

    pub(super) fn compacted_revision(&self) -> Revision {
        self.compacted
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Revision, &[u8])> {
        self.blocks.iter().flat_map(|block| block.events()).skip(self.skipped)
    }

    /// Returns the events from a revision on, as many as one query examines. `now` is the shard's revision.
    pub(super) fn range(&self, from: Option<Revision>, now: Revision) -> Result<HistoryRange, CommandError> {
        let Some(from) = from else {
            return Ok(HistoryRange { segments: vec![], next_revision: now + 1, more: false });
        };
        if from <= self.compacted && self.compacted > 0 {
            return Err(CommandError::RevisionCompacted { oldest: self.compacted + 1 });
        }
        let start = self.blocks.partition_point(|block| block.last() < from);
        let mut part = HistoryRange { segments: vec![], next_revision: from.max(now + 1), more: false };
        let mut budget = PageBudget::new(MAX_EVENTS_EXAMINED, MAX_EVENT_BYTES_EXAMINED);
        for block in self.blocks.range(start..) {
            // The evicted events of the first block also precede `from`.
            let begin = block.ends.partition_point(|(revision, _)| *revision < from);
            let fitting = (begin..block.ends.len()).take_while(|index| budget.try_take(block.bytes_of(*index).len()));
            let end = begin + fitting.count();
            part.segments.extend((end > begin).then(|| block.share(begin..end)));
            if let Some((revision, _)) = block.ends.get(end) {
                (part.next_revision, part.more) = (*revision, true);
                break;
            }
        }
        Ok(part)
    }
}

/// Some events of a history, detached from the state, so that a reader does not block the shard.
#[derive(Debug)]
pub(super) struct HistoryRange {
    segments: Vec<(Arc<Block>, Range<usize>)>,
    /// The revision after the last event.
    next_revision: Revision,
    more: bool,
}

impl HistoryRange {
    /// Returns the events that concern the prefix.
    pub(super) fn page(&self, prefix: &Path, limit: u32) -> EventPage {
        let mut page = EventPage { events: vec![], next_revision: self.next_revision, more: self.more };
        let mut budget = PageBudget::of(limit);
        let all = self.segments.iter().flat_map(|(block, range)| range.clone().map(|index| block.bytes_of(index)));
        for bytes in all {
            let event: Event = codec::decode(bytes).expect("events are written by `push` or checked by `restore`");
            if !event.concerns(prefix) {
                continue;
            }
            if !budget.try_take(bytes.len()) {
                (page.next_revision, page.more) = (event.revision, true);
                break;
            }
            page.events.push(event);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Claim;

    const MAX: usize = 1_000;

    #[test]
    fn an_event_is_written_as_it_is_read() {
        let owner = Owner::Session { session_id: "se_1".into(), holder: Some("h".into()) };
        let claims = || vec![EventClaim { path: vec!["a", "b"], mode: Mode::Read }];
        let (kind, token) = (EventKind::Deleted, Some(4));
        let (owner_again, process_id) = (owner.clone(), "p");
        let written =
            EventRecord { revision: 7, at_ms: 9, kind, owner, process_id, fencing_token: token, claims: claims() };
        let read = Event {
            revision: 7,
            at_ms: 9,
            kind,
            owner: owner_again,
            process_id: "p".into(),
            fencing_token: token,
            claims: vec![Claim { path: Path(vec!["a".into(), "b".into()]), mode: Mode::Read }],
        };
        assert_eq!(codec::encode(&written), codec::encode(&read));
    }

    #[test]
    fn the_latest_events_are_remembered_and_none_before_them() {
        let mut history = History::default();
        let all = MAX as u64 + EVENTS_PER_BLOCK as u64 + 7;
        for number in 1..=all {
            let owner = Owner::Process("p".into());
            let (kind, process_id) = (EventKind::Deleted, "p");
            let written = EventRecord {
                revision: 2 * number,
                at_ms: 0,
                kind,
                owner,
                process_id,
                fencing_token: None,
                claims: vec![],
            };
            history.push(&written, MAX, u64::MAX);
        }
        let forgotten = all - MAX as u64;
        let revisions: Vec<Revision> = history.iter().map(|(revision, _)| revision).collect();
        assert_eq!(revisions, (forgotten + 1..=all).map(|number| 2 * number).collect::<Vec<_>>());
        assert_eq!(history.compacted_revision(), 2 * forgotten);
        assert_eq!(history.blocks.len(), (all as usize).div_ceil(EVENTS_PER_BLOCK) - 1);
        let page = |from: Revision| {
            let part = history.range(Some(from), 2 * all).map_err(|_| ());
            part.map(|part| {
                part.page(&Path::default(), 3).events.iter().map(|event| event.revision).collect::<Vec<_>>()
            })
        };
        assert_eq!(page(2 * forgotten), Err(()));
        let first = 2 * (forgotten + 1);
        for from in [first - 1, first] {
            assert_eq!(page(from), Ok(vec![first, first + 2, first + 4]));
        }
        let next_block = 2 * EVENTS_PER_BLOCK as u64 * 3;
        assert_eq!(page(next_block - 1), Ok(vec![next_block, next_block + 2, next_block + 4]));
        assert_eq!(page(2 * all), Ok(vec![2 * all]));
        assert_eq!(page(2 * all + 1), Ok(vec![]));
    }

    /// Builds a history of `events` events, each with a process id of `bytes` bytes, at the even revisions from 2 on.
    fn history_of(events: u64, bytes: usize) -> History {
        let mut history = History::default();
        for number in 1..=events {
            let owner = Owner::Process("p".into());
            let (kind, process_id) = (EventKind::Deleted, &*"p".repeat(bytes));
            let (revision, claims) = (2 * number, vec![]);
            let written = EventRecord { revision, at_ms: 0, kind, owner, process_id, fencing_token: None, claims };
            history.push(&written, usize::MAX, u64::MAX);
        }
        history
    }

    /// Reads all events from a revision on with a prefix that matches none. Returns how many events each query
    /// examined.
    fn scan_all(history: &History, mut from: Revision, now: Revision) -> Vec<usize> {
        let mut examined = Vec::new();
        loop {
            let part = history.range(Some(from), now).map_err(|_| "it is all there").unwrap();
            let page = part.page(&Path::flat("nobody"), 100);
            assert!(page.events.is_empty() && page.next_revision > from);
            examined.push(part.segments.iter().map(|(_, range)| range.len()).sum());
            from = page.next_revision;
            if !page.more {
                assert_eq!(from, now + 1);
                return examined;
            }
        }
    }

    #[test]
    fn a_look_at_events_is_bounded_in_number_and_bytes_and_tells_where_to_go_on() {
        let few = MAX_EVENTS_EXAMINED;
        assert_eq!(scan_all(&history_of(2 * few as u64 + 10, 1), 1, 9_999), [few, few, 10]);
        assert_eq!(scan_all(&history_of(few as u64, 1), 1, 9_999), [few]);
        let large = scan_all(&history_of(300, 10_000), 3, 9_999);
        assert!(large.len() > 10 && large.iter().all(|examined| examined * 10_000 <= MAX_EVENT_BYTES_EXAMINED));
        assert_eq!(large.iter().sum::<usize>(), 299);
        assert_eq!(scan_all(&history_of(3, MAX_EVENT_BYTES_EXAMINED + 1), 1, 9_999), [1, 1, 1], "one at least");
        assert_eq!(scan_all(&history_of(70, 1), 139, 140), [1], "only what is asked for");
    }

    #[test]
    fn the_oldest_give_way_to_what_is_more_than_so_many_bytes() {
        let mut history = history_of(300, 1_000);
        let all = history.bytes();
        let charges: Vec<u64> = history.iter().map(|(_, bytes)| charge::event(bytes.len())).collect();
        assert!(all == charges.iter().sum::<u64>() && charges[0] > 1_000);
        assert_eq!(history.shrink_to(all), 0);
        assert_eq!(history.shrink_to(all - 1), charges[0]);
        let each = charges[299];
        history.shrink_to(100 * each);
        assert_eq!((history.len, history.bytes(), history.compacted_revision()), (100, 100 * each, 400));
        let event = |revision| Event {
            revision,
            at_ms: 0,
            kind: EventKind::Deleted,
            owner: Owner::Process("p".into()),
            process_id: "p".repeat(1_000),
            fencing_token: None,
            claims: vec![],
        };
        history.push_bytes(602, &codec::encode(&event(602)), MAX, 50 * each);
        assert_eq!((history.iter().count(), history.compacted_revision()), (50, 502));
        history.push_bytes(604, &codec::encode(&event(604)), MAX, 0);
        assert_eq!((history.iter().count(), history.bytes(), history.compacted_revision()), (0, 0, 604));
    }

    #[test]
    fn whoever_looks_does_not_make_the_next_event_dearer() {
        let mut history = history_of(EVENTS_PER_BLOCK as u64 + 3, 1);
        let part = history.range(Some(1), 9_999).map_err(|_| "it is all there").unwrap();
        let open = Arc::as_ptr(history.blocks.back().unwrap());
        let more = Event {
            revision: 1_000,
            at_ms: 0,
            kind: EventKind::Deleted,
            owner: Owner::Process("p".into()),
            process_id: String::new(),
            fencing_token: None,
            claims: vec![],
        };
        history.push_bytes(1_000, &codec::encode(&more), MAX, u64::MAX);
        assert_eq!(Arc::as_ptr(history.blocks.back().unwrap()), open, "nothing had to be copied");
        assert_eq!(part.page(&Path::default(), 1_000).events.len(), EVENTS_PER_BLOCK + 3);
    }
}
