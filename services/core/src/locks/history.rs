//! The retained events of a namespace.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use holdfast_primitives::page::PageBudget;

use super::event_block::Block;
use super::event_view::{EventRecord, EventView, Segments};
use super::owner::NO_OWNER;
use crate::{CommandError, Event, Kinds, MAX_EVENT_BYTES_EXAMINED, MAX_EVENTS_EXAMINED, Mode, Path, Revision, codec};

/// The latest events in order of revision. They stay encoded, because few are ever read. A clone shares the blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// In order, none empty. Only the last may have room.
    blocks: VecDeque<Arc<Block>>,
    /// The number of evicted events in the first block.
    skipped: usize,
    len: usize,
    /// The charge of the retained events.
    bytes: u64,
    /// The revision of the last evicted event; 0 if there is none.
    compacted: Revision,
}

/// Shares some events of a block with a reader. Copies a block that is not full: sharing it would make the next event
/// copy it.
fn share(block: &Arc<Block>) -> Arc<Block> {
    if block.is_full() { Arc::clone(block) } else { Arc::new(Block::clone(block)) }
}

/// A page of events.
pub(super) struct EventPage {
    pub(super) events: Vec<Event>,
    pub(super) next_revision: Revision,
    pub(super) more: bool,
}

impl History {
    /// Appends an event, keeping at most `max` events and `max_bytes` of charge.
    pub(super) fn push<P: Segments>(
        &mut self,
        event: &EventRecord<'_>,
        claims: impl ExactSizeIterator<Item = (P, Mode)>,
        max: usize,
        max_bytes: u64,
    ) {
        if self.blocks.back().is_none_or(|last| !last.can_add(event.revision)) {
            self.blocks.push_back(Arc::default());
        }
        let block = self.blocks.back_mut().map(Arc::make_mut).expect("it was just made");
        self.bytes += block.push(event, claims);
        if block.is_full() {
            block.shrink_to_fit();
        }
        self.len += 1;
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

    /// Appends an event with the names of its owner, as [`Self::push`] does.
    pub(super) fn push_event(&mut self, event: &Event, max: usize, max_bytes: u64) {
        let record = EventRecord {
            revision: event.revision,
            at_ms: event.at_ms,
            kind: event.kind,
            owner_id: NO_OWNER,
            owner: (&event.owner).into(),
            process_id: &event.process_id,
            fencing_token: event.fencing_token,
        };
        self.push(&record, event.claims.iter().map(|claim| (&claim.path, claim.mode)), max, max_bytes);
    }

    /// Evicts all events, and counts those up to a revision as evicted, which is not below that of the last one.
    pub(super) fn evict_up_to(&mut self, revision: Revision) {
        self.shrink_to(0);
        self.compacted = revision;
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
        self.compacted = first.revision(self.skipped);
        self.bytes -= first.charge(self.skipped);
        self.skipped += 1;
        self.len -= 1;
        if self.skipped == first.len() {
            self.blocks.pop_front();
            self.skipped = 0;
        }
    }

    /// Appends an event of a snapshot. Returns false if it is out of order, exceeds `max`, or is no valid event.
    pub(super) fn restore(&mut self, revision: Revision, bytes: &[u8], max: usize) -> bool {
        if revision <= self.last_revision() || self.len >= max {
            return false;
        }
        let Ok(event) = codec::decode::<Event>(bytes) else { return false };
        let fits = event.revision == revision;
        if fits {
            self.push_event(&event, max, u64::MAX);
        }
        fits
    }

    /// Returns the revision of the last event, whether or not it is evicted; 0 if there was none.
    pub(super) fn last_revision(&self) -> Revision {
        self.blocks.back().map_or(self.compacted, |block| block.last_revision())
    }

    /// Returns the events from a revision on, each with its charge; `None` if some of them may be evicted.
    pub(super) fn since(&self, from: Revision) -> Option<impl Iterator<Item = (u64, Event)>> {
        if from <= self.compacted {
            return None;
        }
        let start = self.blocks.partition_point(|block| block.last_revision() < from);
        // The evicted events of the first block also precede `from`.
        let places = self.blocks.range(start..).flat_map(move |block| {
            let first = block.events_before(from);
            (first..block.len()).map(move |index| (block, index))
        });
        Some(places.map(|(block, index)| (block.charge(index), block.event(index).to_event())))
    }

    pub(super) fn restore_compacted_revision(&mut self, forgotten: Revision) {
        self.compacted = forgotten;
    }

    pub(super) fn compacted_revision(&self) -> Revision {
        self.compacted
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = EventView<'_>> {
        let all = self.blocks.iter().flat_map(|block| (0..block.len()).map(move |index| (block, index)));
        all.skip(self.skipped).map(|(block, index)| block.event(index))
    }

    /// Returns the events from a revision on, as many as one query examines. `now` is the shard's revision.
    pub(super) fn range(&self, from: Option<Revision>, now: Revision) -> Result<HistoryRange, CommandError> {
        let Some(from) = from else {
            return Ok(HistoryRange { segments: vec![], next_revision: now + 1, more: false });
        };
        if from <= self.compacted && self.compacted > 0 {
            return Err(CommandError::RevisionCompacted { oldest: self.compacted + 1 });
        }
        let start = self.blocks.partition_point(|block| block.last_revision() < from);
        let mut part = HistoryRange { segments: vec![], next_revision: from.max(now + 1), more: false };
        let mut budget = PageBudget::new(MAX_EVENTS_EXAMINED, MAX_EVENT_BYTES_EXAMINED);
        for block in self.blocks.range(start..) {
            // The evicted events of the first block also precede `from`.
            let begin = block.events_before(from);
            let bytes = |index: &usize| usize::try_from(block.charge(*index)).unwrap_or(usize::MAX);
            let end = begin + (begin..block.len()).take_while(|index| budget.try_take(bytes(index))).count();
            part.segments.extend((end > begin).then(|| (share(block), begin..end)));
            if end < block.len() {
                (part.next_revision, part.more) = (block.revision(end), true);
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
    pub(super) fn page(&self, prefix: &Path, kinds: Kinds, limit: u32) -> EventPage {
        let mut page = EventPage { events: vec![], next_revision: self.next_revision, more: self.more };
        let mut budget = PageBudget::of(limit);
        let all = self.segments.iter().flat_map(|(block, range)| range.clone().map(move |index| (block, index)));
        for (block, index) in all {
            let event = block.event(index).to_event();
            if !event.concerns(prefix, kinds) {
                continue;
            }
            if !budget.try_take(codec::size(&event)) {
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
    use super::super::event_block::EVENTS_PER_BLOCK;
    use super::super::event_view::OwnerView;
    use super::*;
    use crate::EventKind;

    const MAX: usize = 1_000;

    /// Adds the end of a hold of a process.
    fn push(history: &mut History, revision: Revision, process_id: &str, max: usize, max_bytes: u64) {
        let owner = OwnerView::Process("p");
        let (kind, owner_id) = (EventKind::Deleted, NO_OWNER);
        let event = EventRecord { revision, at_ms: 0, kind, owner_id, owner, process_id, fencing_token: None };
        history.push(&event, [].map(|path: &Path| (path, Mode::Read)).into_iter(), max, max_bytes);
    }

    #[test]
    fn the_latest_events_are_remembered_and_none_before_them() {
        let mut history = History::default();
        let all = MAX as u64 + EVENTS_PER_BLOCK as u64 + 7;
        for number in 1..=all {
            push(&mut history, 2 * number, "p", MAX, u64::MAX);
        }
        let forgotten = all - MAX as u64;
        let revisions: Vec<Revision> = history.iter().map(|event| event.revision).collect();
        assert_eq!(revisions, (forgotten + 1..=all).map(|number| 2 * number).collect::<Vec<_>>());
        assert_eq!(history.compacted_revision(), 2 * forgotten);
        assert_eq!(history.blocks.len(), (all as usize).div_ceil(EVENTS_PER_BLOCK) - 1);
        let page = |from: Revision| {
            let part = history.range(Some(from), 2 * all).map_err(|_| ());
            part.map(|part| {
                part.page(&Path::default(), Kinds::LOCKS, 3)
                    .events
                    .iter()
                    .map(|event| event.revision)
                    .collect::<Vec<_>>()
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
            push(&mut history, 2 * number, &format!("{number}{}", "x".repeat(bytes)), usize::MAX, u64::MAX);
        }
        history
    }

    /// Reads all events from a revision on with a prefix that matches none. Returns how many events each query
    /// examined.
    fn scan_all(history: &History, mut from: Revision, now: Revision) -> Vec<usize> {
        let mut examined = Vec::new();
        loop {
            let part = history.range(Some(from), now).map_err(|_| "it is all there").unwrap();
            let page = part.page(&Path::flat("nobody"), Kinds::LOCKS, 100);
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
        let of_block = |block: &Arc<Block>| (0..block.len()).map(|index| block.charge(index)).collect::<Vec<u64>>();
        let charges: Vec<u64> = history.blocks.iter().flat_map(of_block).collect();
        assert!(all == charges.iter().sum::<u64>() && charges[0] > 1_000);
        assert_eq!(history.shrink_to(all), 0);
        assert_eq!(history.shrink_to(all - 1), charges[0]);
        let each = charges[299];
        history.shrink_to(100 * each);
        assert_eq!((history.len, history.bytes(), history.compacted_revision()), (100, 100 * each, 400));
        push(&mut history, 602, &"p".repeat(1_000), MAX, 50 * each);
        assert_eq!((history.iter().count(), history.compacted_revision()), (50, 502));
        push(&mut history, 604, &"p".repeat(1_000), MAX, 0);
        assert_eq!((history.iter().count(), history.bytes(), history.compacted_revision()), (0, 0, 604));
    }

    #[test]
    fn whoever_looks_does_not_make_the_next_event_dearer() {
        let mut history = history_of(EVENTS_PER_BLOCK as u64 + 3, 1);
        let part = history.range(Some(1), 9_999).map_err(|_| "it is all there").unwrap();
        let open = Arc::as_ptr(history.blocks.back().unwrap());
        push(&mut history, 1_000, "", MAX, u64::MAX);
        assert_eq!(Arc::as_ptr(history.blocks.back().unwrap()), open, "nothing had to be copied");
        assert_eq!(part.page(&Path::default(), Kinds::LOCKS, 1_000).events.len(), EVENTS_PER_BLOCK + 3);
    }
}
