//! A block of events in a compact encoding: names of owners are written once in a block, revisions and times as
//! differences, and the end of a hold refers to the event of its grant. The encoding is never visible: it depends on
//! where a block begins, which differs between replicas.

use super::charge;
use super::event_view::{ClaimView, EventRecord, EventView, PathWriter, Reader, Segments};
use super::event_view::{put, put_difference, put_kind, put_names};
use super::owner::OwnerId;
use crate::{EventKind, FencingToken, Mode, Revision};

/// Maximum number of events in a block.
pub(super) const EVENTS_PER_BLOCK: usize = 64;
/// A block of this many bytes is full.
const FULL_BLOCK_BYTES: usize = 16 * 1024;

/// Concatenated encoded events, in order of revision.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    /// The revision and the time of the first event.
    base: (Revision, u64),
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Owners, each with the start of its names.
    owners: Vec<(OwnerId, u32)>,
}

/// Where an event is.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The revision, from that of the first event on.
    revision: u32,
    /// The end of its bytes.
    end: u32,
    charge: u32,
}

/// The bits of the first byte of an event with its kind.
const KIND_BITS: u8 = 7;
/// Other bits of that byte.
const HAS_TOKEN: u8 = 1 << 3;
/// The token is the revision of the event.
const TOKEN_IS_REVISION: u8 = 1 << 4;
/// The only claim has the path of the event whose revision is the token.
const PATH_OF_GRANT: u8 = 1 << 5;
/// There is one claim.
const ONE_CLAIM: u8 = 1 << 6;
/// The only claim is one to WRITE.
const WRITES: u8 = 1 << 7;

const KINDS: [EventKind; 7] = [
    EventKind::Acquired,
    EventKind::Released,
    EventKind::Expired,
    EventKind::Deleted,
    EventKind::Reset,
    EventKind::SessionOpened,
    EventKind::SessionEnded,
];

/// The number of every other kind. The kind follows in full.
const OTHER_KIND: u8 = 7;

impl Block {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether a block takes no further event, whatever it is.
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() == EVENTS_PER_BLOCK || self.bytes.len() >= FULL_BLOCK_BYTES
    }

    /// Returns whether an event of that revision, which is higher than all others, can be added.
    pub(super) fn can_add(&self, revision: Revision) -> bool {
        !self.is_full() && (self.entries.is_empty() || u32::try_from(revision - self.base.0).is_ok())
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
        self.owners.shrink_to_fit();
    }

    pub(super) fn revision(&self, index: usize) -> Revision {
        self.entries.get(index).map_or(0, |entry| self.base.0 + u64::from(entry.revision))
    }

    pub(super) fn last_revision(&self) -> Revision {
        self.revision(self.entries.len().saturating_sub(1))
    }

    /// Returns the number of events before a revision.
    pub(super) fn events_before(&self, revision: Revision) -> usize {
        self.entries.partition_point(|entry| self.base.0 + u64::from(entry.revision) < revision)
    }

    pub(super) fn charge(&self, index: usize) -> u64 {
        self.entries.get(index).map_or(0, |entry| entry.charge.into())
    }

    /// Adds an event, for which there is room. Returns its charge.
    pub(super) fn push<P: Segments>(
        &mut self,
        event: &EventRecord<'_>,
        claims: impl ExactSizeIterator<Item = (P, Mode)>,
    ) -> u64 {
        if self.entries.is_empty() {
            self.base = (event.revision, event.at_ms);
        }
        let start = self.bytes.len();
        let known = KINDS.iter().position(|kind| *kind == event.kind);
        let kind = known.and_then(|known| u8::try_from(known).ok()).unwrap_or(OTHER_KIND);
        self.bytes.push(kind);
        if kind == OTHER_KIND {
            put_kind(&mut self.bytes, event.kind);
        }
        put_difference(&mut self.bytes, event.at_ms, self.base.1);
        let names = self.put_owner(event);
        let mut head = kind;
        match event.fencing_token {
            None => {}
            Some(token) if token == event.revision => head |= HAS_TOKEN | TOKEN_IS_REVISION,
            Some(token) => {
                head |= HAS_TOKEN;
                put_difference(&mut self.bytes, token, event.revision);
            }
        }
        let (bits, claimed) = self.put_claims(event, claims);
        if let Some(first) = self.bytes.get_mut(start) {
            *first = head | bits;
        }
        let charge = u32::try_from(charge::event(names) + claimed).unwrap_or(u32::MAX);
        self.entries.push(Entry {
            revision: u32::try_from(event.revision - self.base.0).unwrap_or(u32::MAX),
            end: u32::try_from(self.bytes.len()).unwrap_or(u32::MAX),
            charge,
        });
        charge.into()
    }

    /// Writes the number of an owner, and its names if they are new in the block. Returns their length.
    fn put_owner(&mut self, event: &EventRecord<'_>) -> usize {
        let number_at = self.bytes.len();
        self.bytes.push(u8::try_from(self.owners.len()).unwrap_or(u8::MAX));
        let start = self.bytes.len();
        let names = put_names(&mut self.bytes, event);
        let new = self.bytes.get(start..).unwrap_or_default();
        let known = self.owners.iter().position(|(id, at)| {
            *id == event.owner_id && self.bytes.get(*at as usize..).is_some_and(|names| names.starts_with(new))
        });
        match known.and_then(|number| u8::try_from(number).ok()) {
            Some(number) => {
                self.bytes.truncate(number_at);
                self.bytes.push(number);
            }
            None => self.owners.push((event.owner_id, u32::try_from(start).unwrap_or(u32::MAX))),
        }
        names
    }

    /// Writes the claims. Returns the bits of the first byte that tell how, and the charge.
    fn put_claims<P: Segments>(
        &mut self,
        event: &EventRecord<'_>,
        claims: impl ExactSizeIterator<Item = (P, Mode)>,
    ) -> (u8, u64) {
        let is_one = claims.len() == 1;
        if !is_one {
            put(&mut self.bytes, claims.len() as u64);
        }
        let (mut bits, mut charge) = (if is_one { ONE_CLAIM } else { 0 }, 0);
        for (path, mode) in claims {
            let writes = mode == Mode::Write;
            if is_one {
                bits |= if writes { WRITES } else { 0 };
            } else {
                self.bytes.push(writes.into());
            }
            let start = self.bytes.len();
            let mut writer = PathWriter { bytes: &mut self.bytes, charge: 0 };
            path.write(&mut writer);
            charge += writer.charge;
            let path = self.bytes.get(start..).unwrap_or_default();
            let grant = event.fencing_token.filter(|_| is_one).and_then(|token| self.path_of_grant(token));
            if grant.is_some_and(|grant| grant.starts_with(path)) {
                self.bytes.truncate(start);
                bits |= PATH_OF_GRANT;
            }
        }
        (bits, charge)
    }

    /// Returns the bytes from the path of the event of a grant on, if the event is in the block and has only that path,
    /// written there.
    fn path_of_grant(&self, token: FencingToken) -> Option<&[u8]> {
        let index = self.events_before(token);
        if self.entries.get(index).is_none() || self.revision(index) != token {
            return None;
        }
        let mut reader = self.reader(index);
        let head = reader.byte();
        if head & KIND_BITS == OTHER_KIND {
            reader.kind();
        }
        let is_written = head & ONE_CLAIM != 0 && head & PATH_OF_GRANT == 0;
        reader.number();
        self.skip_owner(&mut reader);
        if head & HAS_TOKEN != 0 && head & TOKEN_IS_REVISION == 0 {
            reader.number();
        }
        is_written.then_some(reader.0)
    }

    fn reader(&self, index: usize) -> Reader<'_> {
        let start = index.checked_sub(1).and_then(|before| self.entries.get(before)).map_or(0, |entry| entry.end);
        Reader(self.bytes.get(start as usize..).unwrap_or_default())
    }

    /// Reads the number of an owner, and skips its names if they follow. Returns the number.
    fn skip_owner(&self, reader: &mut Reader<'_>) -> usize {
        let at = self.bytes.len() - reader.0.len() + 1;
        let number = usize::from(reader.byte());
        if self.owners.get(number).is_some_and(|(_, start)| *start as usize == at) {
            reader.names();
        }
        number
    }

    /// Reads an event.
    pub(super) fn event(&self, index: usize) -> EventView<'_> {
        let revision = self.revision(index);
        let mut reader = self.reader(index);
        let head = reader.byte();
        let known = KINDS.get(usize::from(head & KIND_BITS)).copied();
        let kind = known.unwrap_or_else(|| reader.kind());
        let at_ms = reader.difference(self.base.1);
        let number = self.skip_owner(&mut reader);
        let names = self.owners.get(number).and_then(|(_, start)| self.bytes.get(*start as usize..));
        let (owner, process_id) = Reader(names.unwrap_or_default()).names();
        let fencing_token = match head & (HAS_TOKEN | TOKEN_IS_REVISION) {
            0 => None,
            HAS_TOKEN => Some(reader.difference(revision)),
            _ => Some(revision),
        };
        let mode = |writes: bool| if writes { Mode::Write } else { Mode::Read };
        let claims = if head & ONE_CLAIM != 0 {
            let grant = fencing_token.filter(|_| head & PATH_OF_GRANT != 0).and_then(|it| self.path_of_grant(it));
            let path = grant.map_or(reader, Reader).path();
            vec![ClaimView { path, mode: mode(head & WRITES != 0) }]
        } else {
            let claims = reader.number();
            (0..claims).map(|_| ClaimView { mode: mode(reader.byte() != 0), path: reader.path() }).collect()
        };
        EventView { revision, at_ms, kind, owner, process_id, fencing_token, claims }
    }
}

#[cfg(test)]
mod tests {
    use super::super::owner::NO_OWNER;
    use super::*;
    use crate::{Claim, Event, Owner, Path, codec};

    fn claim(path: &[&str], mode: Mode) -> Claim {
        Claim { path: Path(path.iter().map(|segment| (*segment).to_owned()).collect()), mode }
    }

    fn push(block: &mut Block, owner_id: OwnerId, event: &Event) -> u64 {
        let record = EventRecord {
            revision: event.revision,
            at_ms: event.at_ms,
            kind: event.kind,
            owner_id,
            owner: (&event.owner).into(),
            process_id: &event.process_id,
            fencing_token: event.fencing_token,
        };
        block.push(&record, event.claims.iter().map(|claim| (&claim.path, claim.mode)))
    }

    /// Events with all that may come together.
    fn events() -> Vec<Event> {
        let owners = [
            Owner::Process("p".into()),
            Owner::Process("é".repeat(200)),
            Owner::Session { session_id: "se_1".into(), holder: None },
            Owner::Session { session_id: "se_1".into(), holder: Some(String::new()) },
            Owner::Session { session_id: "se_1".into(), holder: Some("h".into()) },
        ];
        let claims = [
            vec![],
            vec![claim(&["a"], Mode::Write)],
            vec![claim(&["a"], Mode::Read)],
            vec![claim(&[], Mode::Read)],
            vec![claim(&["a", "b"], Mode::Write)],
            vec![claim(&["a"], Mode::Read), claim(&["", "x"], Mode::Write)],
        ];
        let mut all = Vec::new();
        for number in 0..600_usize {
            let revision = 1_000 + 3 * number as u64;
            let tokens = [None, Some(revision), Some(revision - 3), Some(revision - 6), Some(1), Some(u64::MAX)];
            all.push(Event {
                revision,
                at_ms: [7, u64::MAX, 0, 1_790_000_000_000][number % 4],
                kind: KINDS[number / 3 % KINDS.len()],
                owner: owners[number / 7 % owners.len()].clone(),
                process_id: ["p", "", "worker"][number / 2 % 3].to_owned(),
                fencing_token: tokens[number * 5 % 13 % tokens.len()],
                claims: claims[number / 2 % claims.len()].clone(),
            });
        }
        all
    }

    #[test]
    fn events_are_read_as_they_were_written_however_they_refer_to_each_other() {
        let mut blocks = vec![Block::default()];
        let all = events();
        for event in &all {
            if !blocks.last().unwrap().can_add(event.revision) {
                blocks.push(Block::default());
            }
            // Numbers of owners are used again.
            let owner = if event.revision % 5 == 0 { NO_OWNER } else { OwnerId((event.revision % 3) as u32) };
            push(blocks.last_mut().unwrap(), owner, event);
        }
        let views = || blocks.iter().flat_map(|block| (0..block.len()).map(|index| block.event(index)));
        assert_eq!(views().map(|view| view.to_event()).collect::<Vec<_>>(), all);
        assert!(views().zip(&all).all(|(view, event)| codec::encode(&view) == codec::encode(event)));
    }

    #[test]
    fn a_pair_of_an_owner_takes_few_bytes() {
        let mut block = Block::default();
        let owner = Owner::Session { session_id: "se_3m9qkz7dvx4hbn2w8rtyc6pfga".into(), holder: None };
        for pair in 0..32 {
            let (revision, at_ms, claims) =
                (1_000_000 + 2 * pair, 1_790_000_000_000 + pair, vec![claim(&["lock-000001"], Mode::Write)]);
            let (process_id, token) = ("worker".to_owned(), Some(revision));
            let (kind, owner) = (EventKind::Acquired, owner.clone());
            let granted = Event { revision, at_ms, kind, owner, process_id, fencing_token: token, claims };
            push(&mut block, OwnerId(1), &granted);
            push(&mut block, OwnerId(1), &Event { revision: revision + 1, kind: EventKind::Released, ..granted });
        }
        assert!(block.is_full() && block.bytes.len() <= 32 * 22 + 40, "{} bytes", block.bytes.len());
    }
}
