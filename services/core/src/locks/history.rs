//! The events of a namespace that are remembered.

use std::collections::VecDeque;

use serde::Serialize;

use crate::page::Room;
use crate::{
    Claim, Event, EventKind, FencingToken, MAX_REMEMBERED_EVENTS, Mode, Owner, Path, Refusal, Revision, codec,
};

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

/// The latest events, in order of revision. They are kept as bytes: few are ever read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    events: VecDeque<(Revision, Box<[u8]>)>,
    /// The last one that was forgotten; 0 when none was.
    forgotten: Revision,
}

/// A page of events.
pub(super) struct EventPage {
    pub(super) events: Vec<Event>,
    pub(super) next_revision: Revision,
    pub(super) more: bool,
}

impl History {
    pub(super) fn push(&mut self, event: &Written<'_>) {
        self.push_bytes(event.revision, codec::encode(event).into_boxed_slice());
    }

    pub(super) fn push_bytes(&mut self, revision: Revision, bytes: Box<[u8]>) {
        self.events.push_back((revision, bytes));
        if self.events.len() > MAX_REMEMBERED_EVENTS
            && let Some((revision, _)) = self.events.pop_front()
        {
            self.forgotten = revision;
        }
    }

    /// Takes an event of a snapshot; false when it is out of order, one too many, or no event.
    pub(super) fn restore(&mut self, revision: Revision, bytes: Box<[u8]>) -> bool {
        let last = self.events.back().map_or(self.forgotten, |(revision, _)| *revision);
        let is_event = || codec::decode::<Event>(&bytes).is_ok_and(|event| event.revision == revision);
        let fits = revision > last && self.events.len() < MAX_REMEMBERED_EVENTS && is_event();
        if fits {
            self.push_bytes(revision, bytes);
        }
        fits
    }

    pub(super) fn restore_forgotten(&mut self, forgotten: Revision) {
        self.forgotten = forgotten;
    }

    pub(super) fn forgotten(&self) -> Revision {
        self.forgotten
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Revision, Box<[u8]>)> {
        self.events.iter()
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
        let start = self.events.partition_point(|(revision, _)| *revision < from);
        let mut page = EventPage { events: vec![], next_revision: from.max(now + 1), more: false };
        let mut room = Room::of(limit);
        for (revision, bytes) in self.events.range(start..) {
            let event: Event = codec::decode(bytes).expect("events are written by `push` or checked by `restore`");
            if !concerns(&event.claims, prefix) {
                continue;
            }
            if !room.take(bytes.len()) {
                page.next_revision = *revision;
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
}
