//! Events as they are written and read, and the encoding of their parts.

use serde::Serialize;

use super::charge;
use super::owner::OwnerId;
use crate::{Claim, Event, EventKind, FencingToken, Mode, Owner, Path, Revision};

/// An event. It has the same encoding as [`Event`] and borrows its names.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EventView<'a> {
    pub(super) revision: Revision,
    pub(super) at_ms: u64,
    pub(super) kind: EventKind,
    pub(super) owner: OwnerView<'a>,
    pub(super) process_id: &'a str,
    pub(super) fencing_token: Option<FencingToken>,
    pub(super) claims: Vec<ClaimView<'a>>,
}

/// An [`Owner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum OwnerView<'a> {
    Process(&'a str),
    Session { session_id: &'a str, holder: Option<&'a str> },
}

/// A [`Claim`].
#[derive(Clone, Debug, Serialize)]
pub(super) struct ClaimView<'a> {
    pub(super) path: Vec<&'a str>,
    pub(super) mode: Mode,
}

/// The parts of an event to store besides its claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventRecord<'a> {
    pub(super) revision: Revision,
    pub(super) at_ms: u64,
    pub(super) kind: EventKind,
    /// Speeds up finding the names in the block; [`super::owner::NO_OWNER`] if it has none.
    pub(super) owner_id: OwnerId,
    pub(super) owner: OwnerView<'a>,
    pub(super) process_id: &'a str,
    pub(super) fencing_token: Option<FencingToken>,
}

/// A path to store.
pub(super) trait Segments {
    /// Begins the path, then writes each segment from the root on.
    fn write(&self, out: &mut PathWriter<'_>);
}

/// Writes a path, and counts what it is charged.
pub(super) struct PathWriter<'a> {
    pub(super) bytes: &'a mut Vec<u8>,
    pub(super) charge: u64,
}

impl PathWriter<'_> {
    /// Begins a path of so many segments.
    pub(super) fn begin(&mut self, segments: usize) {
        put(self.bytes, segments as u64);
        self.charge += charge::event_claim(segments);
    }

    pub(super) fn segment(&mut self, segment: &[u8]) {
        put_text(self.bytes, segment);
        self.charge += segment.len() as u64;
    }
}

impl Segments for &Path {
    fn write(&self, out: &mut PathWriter<'_>) {
        out.begin(self.0.len());
        self.0.iter().for_each(|segment| out.segment(segment.as_bytes()));
    }
}

/// Bits of the first byte of an owner's names.
const IS_SESSION: u8 = 1;
const HAS_HOLDER: u8 = 2;
const HAS_PROCESS_ID: u8 = 4;

impl EventView<'_> {
    /// Returns what the event is charged.
    pub(super) fn charge(&self) -> u64 {
        let claim = |claim: &ClaimView<'_>| {
            let text: usize = claim.path.iter().map(|segment| segment.len()).sum();
            charge::event_claim(claim.path.len()) + text as u64
        };
        let names = texts(self.owner, self.process_id).iter().flatten().map(|text| text.len()).sum();
        charge::event(names) + self.claims.iter().map(claim).sum::<u64>()
    }

    pub(super) fn to_event(&self) -> Event {
        let path = |path: &[&str]| Path(path.iter().map(|segment| (*segment).to_owned()).collect());
        Event {
            revision: self.revision,
            at_ms: self.at_ms,
            kind: self.kind,
            owner: match self.owner {
                OwnerView::Process(process_id) => Owner::Process(process_id.to_owned()),
                OwnerView::Session { session_id, holder } => {
                    Owner::Session { session_id: session_id.to_owned(), holder: holder.map(str::to_owned) }
                }
            },
            process_id: self.process_id.to_owned(),
            fencing_token: self.fencing_token,
            claims: self.claims.iter().map(|claim| Claim { path: path(&claim.path), mode: claim.mode }).collect(),
        }
    }
}

impl<'a> From<&'a Owner> for OwnerView<'a> {
    fn from(owner: &'a Owner) -> Self {
        match owner {
            Owner::Process(process_id) => Self::Process(process_id),
            Owner::Session { session_id, holder } => Self::Session { session_id, holder: holder.as_deref() },
        }
    }
}

/// Writes the names of an owner. Returns their length.
pub(super) fn put_names(bytes: &mut Vec<u8>, event: &EventRecord<'_>) -> usize {
    let is_session = matches!(event.owner, OwnerView::Session { .. });
    let texts = texts(event.owner, event.process_id);
    let [_, holder, process_id] = texts;
    let bits = [(is_session, IS_SESSION), (holder.is_some(), HAS_HOLDER), (process_id.is_some(), HAS_PROCESS_ID)];
    bytes.push(bits.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum());
    texts.into_iter().flatten().for_each(|text| put_text(bytes, text.as_bytes()));
    texts.into_iter().flatten().map(str::len).sum()
}

/// Returns the names of an owner: its id, its holder, and its process id if that is not its id.
fn texts<'a>(owner: OwnerView<'a>, process_id: &'a str) -> [Option<&'a str>; 3] {
    let (id, holder) = match owner {
        OwnerView::Process(process_id) => (process_id, None),
        OwnerView::Session { session_id, holder } => (session_id, holder),
    };
    [Some(id), holder, Some(process_id).filter(|process_id| *process_id != id)]
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    put(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

/// Writes how much a number differs from another, in either direction.
pub(super) fn put_difference(bytes: &mut Vec<u8>, number: u64, from: u64) {
    let difference = number.wrapping_sub(from) as i64;
    put(bytes, ((difference << 1) ^ (difference >> 63)) as u64);
}

/// Writes a kind of event.
pub(super) fn put_kind(bytes: &mut Vec<u8>, kind: EventKind) {
    let written = postcard::to_extend(&kind, std::mem::take(bytes));
    *bytes = written.expect("kinds of events have known lengths");
}

/// Writes a number, seven bits in a byte.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads what was written here.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(super) fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0_u32);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    }

    pub(super) fn difference(&mut self, from: u64) -> u64 {
        let number = self.number();
        from.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg())
    }

    pub(super) fn kind(&mut self) -> EventKind {
        let Ok((kind, rest)) = postcard::take_from_bytes(self.0) else { return EventKind::Acquired };
        self.0 = rest;
        kind
    }

    fn text(&mut self) -> &'a str {
        let len = usize::try_from(self.number()).unwrap_or(usize::MAX);
        let (text, rest) = self.0.split_at_checked(len).unwrap_or_default();
        self.0 = rest;
        std::str::from_utf8(text).unwrap_or_default()
    }

    pub(super) fn path(&mut self) -> Vec<&'a str> {
        let segments = self.number();
        (0..segments).map(|_| self.text()).collect()
    }

    /// Reads the names of an owner, and its process id.
    pub(super) fn names(&mut self) -> (OwnerView<'a>, &'a str) {
        let bits = self.byte();
        let id = self.text();
        let holder = (bits & HAS_HOLDER != 0).then(|| self.text());
        let process_id = if bits & HAS_PROCESS_ID != 0 { self.text() } else { id };
        let owner =
            if bits & IS_SESSION != 0 { OwnerView::Session { session_id: id, holder } } else { OwnerView::Process(id) };
        (owner, process_id)
    }
}
