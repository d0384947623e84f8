//! The events of a namespace that are remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use crate::page::Room;
use crate::{Claim, Event, EventKind, FencingToken, Mode, Owner, Path, Refusal, Revision, codec};

/// An event as it is written: the same bytes as an [`Event`] has, from what is at hand.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    pub(super) revision: Revision,
    pub(super) at_ms: u64,
    pub(super) kind: EventKind,
    pub(super) owner: Owner,
    pub(super) process_id: &'a str,
    pub(super) fencing_token: Option<FencingToken>,
    pub(super) claims: Vec<WrittenClaim<'a>>,
}

/// A [`Claim`] as it is written.
#[derive(Serialize)]
pub(super) struct WrittenClaim<'a> {
    pub(super) path: Vec<&'a str>,
    pub(super) mode: Mode,
}

/// So many events make a block.
const BLOCK: usize = 64;

/// The latest events, in order of revision. They are kept as bytes: few are ever read. A clone shares the blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// All but the last are full, and none is empty.
    blocks: VecDeque<Arc<Block>>,
    /// How many events of the first block are forgotten.
    skipped: usize,
    len: usize,
    /// The last one that was forgotten; 0 when none was.
    forgotten: Revision,
}

/// Events one behind the other.
#[derive(Clone, Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// The revision of each event, and where its bytes end.
    ends: Vec<(Revision, usize)>,
}

impl Block {
    fn last(&self) -> Revision {
        self.ends.last().map_or(0, |(revision, _)| *revision)
    }

    fn events(&self) -> impl Iterator<Item = (Revision, &[u8])> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        begins.zip(&self.ends).map(|(begin, (revision, end))| (*revision, &self.bytes[begin..*end]))
    }
}

/// A page of events.
pub(super) struct EventPage {
    pub(super) events: Vec<Event>,
    pub(super) next_revision: Revision,
    pub(super) more: bool,
}

impl History {
    /// Remembers one more, and so many at most.
    pub(super) fn push(&mut self, event: &Written<'_>, max: usize) {
        self.push_bytes(event.revision, &codec::encode(event), max);
    }

    fn push_bytes(&mut self, revision: Revision, bytes: &[u8], max: usize) {
        if self.blocks.back().is_none_or(|last| last.ends.len() == BLOCK) {
            self.blocks.push_back(Arc::default());
        }
        let block = self.blocks.back_mut().map(Arc::make_mut).expect("it was just made");
        block.bytes.extend_from_slice(bytes);
        block.ends.push((revision, block.bytes.len()));
        if block.ends.len() == BLOCK {
            block.bytes.shrink_to_fit();
        }
        self.len += 1;
        if self.len > max {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some(first) = self.blocks.front() else { return };
        self.forgotten = first.ends[self.skipped].0;
        self.skipped += 1;
        self.len -= 1;
        if self.skipped == first.ends.len() {
            self.blocks.pop_front();
            self.skipped = 0;
        }
    }

    /// Takes an event of a snapshot; false when it is out of order, one too many, or no event.
    pub(super) fn restore(&mut self, revision: Revision, bytes: &[u8], max: usize) -> bool {
        let last = self.blocks.back().map_or(self.forgotten, |block| block.last());
        let is_event = || codec::decode::<Event>(bytes).is_ok_and(|event| event.revision == revision);
        let fits = revision > last && self.len < max && is_event();
        if fits {
            self.push_bytes(revision, bytes, max);
        }
        fits
    }

    pub(super) fn restore_forgotten(&mut self, forgotten: Revision) {
        self.forgotten = forgotten;
    }

    pub(super) fn forgotten(&self) -> Revision {
        self.forgotten
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Revision, &[u8])> {
        self.blocks.iter().flat_map(|block| block.events()).skip(self.skipped)
    }

    /// Events from a revision on that concern the prefix. `now` is the shard's revision.
    pub(super) fn page(
        &self,
        from: Option<Revision>,
        prefix: &Path,
        limit: u32,
        now: Revision,
    ) -> Result<EventPage, Refusal> {
        let Some(from) = from else {
            return Ok(EventPage { events: vec![], next_revision: now + 1, more: false });
        };
        if from <= self.forgotten && self.forgotten > 0 {
            return Err(Refusal::RevisionCompacted { oldest: self.forgotten + 1 });
        }
        let start = self.blocks.partition_point(|block| block.last() < from);
        let events = self.blocks.range(start..).flat_map(|block| block.events());
        let mut page = EventPage { events: vec![], next_revision: from.max(now + 1), more: false };
        let mut room = Room::of(limit);
        // What is forgotten of the first block comes before `from`, too.
        for (revision, bytes) in events.skip_while(|(revision, _)| *revision < from) {
            let event: Event = codec::decode(bytes).expect("events are written by `push` or checked by `restore`");
            if !concerns(&event.claims, prefix) {
                continue;
            }
            if !room.take(bytes.len()) {
                page.next_revision = revision;
                page.more = true;
                break;
            }
            page.events.push(event);
        }
        Ok(page)
    }
}

/// Whether something at, under or above the prefix is claimed. The empty prefix lets everything pass.
fn concerns(claims: &[Claim], prefix: &Path) -> bool {
    prefix.0.is_empty()
        || claims.iter().any(|claim| prefix.is_prefix_of(&claim.path) || claim.path.is_prefix_of(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1_000;

    #[test]
    fn an_event_is_written_as_it_is_read() {
        let owner = Owner::Session { session_id: "se_1".into(), holder: Some("h".into()) };
        let claims = || vec![WrittenClaim { path: vec!["a", "b"], mode: Mode::Read }];
        let (kind, token) = (EventKind::Deleted, Some(4));
        let (owner_again, process_id) = (owner.clone(), "p");
        let written =
            Written { revision: 7, at_ms: 9, kind, owner, process_id, fencing_token: token, claims: claims() };
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
        let all = MAX as u64 + BLOCK as u64 + 7;
        for number in 1..=all {
            let owner = Owner::Process("p".into());
            let (kind, process_id) = (EventKind::Deleted, "p");
            let written = Written {
                revision: 2 * number,
                at_ms: 0,
                kind,
                owner,
                process_id,
                fencing_token: None,
                claims: vec![],
            };
            history.push(&written, MAX);
        }
        let forgotten = all - MAX as u64;
        let revisions: Vec<Revision> = history.iter().map(|(revision, _)| revision).collect();
        assert_eq!(revisions, (forgotten + 1..=all).map(|number| 2 * number).collect::<Vec<_>>());
        assert_eq!(history.forgotten(), 2 * forgotten);
        assert_eq!(history.blocks.len(), (all as usize).div_ceil(BLOCK) - 1);
        let page = |from: Revision| {
            let page = history.page(Some(from), &Path::default(), 3, 2 * all).map_err(|_| ());
            page.map(|page| page.events.iter().map(|event| event.revision).collect::<Vec<_>>())
        };
        assert_eq!(page(2 * forgotten), Err(()));
        let first = 2 * (forgotten + 1);
        for from in [first - 1, first] {
            assert_eq!(page(from), Ok(vec![first, first + 2, first + 4]));
        }
        let next_block = 2 * BLOCK as u64 * 3;
        assert_eq!(page(next_block - 1), Ok(vec![next_block, next_block + 2, next_block + 4]));
        assert_eq!(page(2 * all), Ok(vec![2 * all]));
        assert_eq!(page(2 * all + 1), Ok(vec![]));
    }
}
