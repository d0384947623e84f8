//! The unreleased requests of a session, indexed by the hash of their ids. Each id is stored once, with its request.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use holdfast_primitives::chunked_set::ChunkedSet;

use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::sessions::NamedRequest;
use super::tree::NodeId;
use crate::{Mode, WaitId};

/// The requests of a session. The order of hashes is never visible.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestIndex {
    entries: ChunkedSet<Entry, Entry>,
    len: usize,
}

/// A hash of a request id, and the request. In halves, which are aligned such that an entry takes sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    hash: [u32; 2],
    request: [u32; 2],
}

/// Set in the number of a granted request; no position of a waiting one has it.
const GRANTED_BIT: u64 = 1 << 62;
/// Set in the number of a request that awaits a condition, and in no other.
const AWAITING_BIT: u64 = 1 << 61;

impl Entry {
    fn of(request_id: &str, named: NamedRequest) -> Self {
        let number = match named {
            NamedRequest::Waiting(position) => position.number(),
            NamedRequest::Granted(granted) => GRANTED_BIT | u64::from(granted),
            NamedRequest::Awaiting(wait) => AWAITING_BIT | wait.0,
        };
        Self { hash: hash_of(request_id), request: halves(number) }
    }

    fn named(self) -> NamedRequest {
        let [high, low] = self.request;
        let number = u64::from(high) << 32 | u64::from(low);
        match number & (GRANTED_BIT | AWAITING_BIT) {
            0 => NamedRequest::Waiting(QueuePosition::numbered(number)),
            AWAITING_BIT => NamedRequest::Awaiting(WaitId(number & !AWAITING_BIT)),
            _ => NamedRequest::Granted(low),
        }
    }
}

impl RequestIndex {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, request_id: &str, named: NamedRequest) {
        self.len += usize::from(self.entries.add(Entry::of(request_id, named)));
    }

    pub(super) fn remove(&mut self, request_id: &str, named: NamedRequest) {
        self.len -= usize::from(self.entries.take(Entry::of(request_id, named)));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NamedRequest> {
        self.entries.iter().map(Entry::named)
    }

    /// Returns the requests whose ids may be this one.
    fn alike(&self, request_id: &str) -> impl Iterator<Item = NamedRequest> {
        let hash = hash_of(request_id);
        let first = Entry { hash, request: [0; 2] };
        self.entries.at_or_after(first).take_while(move |entry| entry.hash == hash).map(Entry::named)
    }
}

impl Namespace {
    /// Returns whether the session of an owner, open or ending, has an unreleased request with that id.
    pub(super) fn has_request(&self, owner: OwnerId, request_id: &str) -> bool {
        let Some(name) = self.owners.name(owner).session() else { return false };
        let session = match self.ending_sessions.get(&name.number) {
            Some(ending) => Some(&ending.session),
            None => self.sessions.get(&name.session_id).filter(|session| session.facts.number == name.number),
        };
        session.is_some_and(|session| self.request_named(&session.requests, request_id).is_some())
    }

    /// Returns the unreleased request of a session with that id.
    pub(super) fn request_named(&self, requests: &RequestIndex, request_id: &str) -> Option<NamedRequest> {
        requests.alike(request_id).find(|named| match named {
            NamedRequest::Waiting(position) => self.waiting(*position).request_id.as_deref() == Some(request_id),
            NamedRequest::Granted(granted) => {
                self.granted_requests.get(*granted).request_id.as_bytes() == request_id.as_bytes()
            }
            NamedRequest::Awaiting(wait) => {
                self.conditions.get(*wait).is_some_and(|awaits| awaits.request_id.as_deref() == Some(request_id))
            }
        })
    }
}

fn halves(number: u64) -> [u32; 2] {
    [(number >> 32) as u32, number as u32]
}

fn hash_of(request_id: &str) -> [u32; 2] {
    let mut hasher = DefaultHasher::new();
    hasher.write(request_id.as_bytes());
    halves(hasher.finish())
}

/// The claims of a granted request whose holds still exist, in order of node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::box_collection,
    reason = "a million requests have one claim each, and a map would make all of them larger"
)]
pub(super) enum LiveClaims {
    #[default]
    None,
    One(NodeId, Mode),
    Many(Box<BTreeMap<NodeId, Mode>>),
}

impl LiveClaims {
    pub(super) fn insert(&mut self, node: NodeId, mode: Mode) {
        match self {
            Self::None => *self = Self::One(node, mode),
            Self::One(first, _) if *first == node => *self = Self::One(node, mode),
            Self::One(first, first_mode) => {
                *self = Self::Many(Box::new(BTreeMap::from([(*first, *first_mode), (node, mode)])));
            }
            Self::Many(claims) => drop(claims.insert(node, mode)),
        }
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        match self {
            Self::One(only, _) if *only == node => *self = Self::None,
            Self::None | Self::One(..) => {}
            Self::Many(claims) => {
                claims.remove(&node);
                if let (1, Some((last, mode))) = (claims.len(), claims.first_key_value()) {
                    *self = Self::One(*last, *mode);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(claims) => claims.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, Mode)> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(node, mode) => (Some((*node, *mode)), None),
            Self::Many(claims) => (None, Some(claims.iter().map(|(node, mode)| (*node, *mode)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.iter().map(|(node, _)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WaitId;

    #[test]
    fn a_request_is_found_as_it_was_added() {
        let mut index = RequestIndex::default();
        let waiting = |upgrade| NamedRequest::Waiting(QueuePosition::of(WaitId((1 << 53) - 1), upgrade));
        let awaiting = NamedRequest::Awaiting(WaitId((1 << 53) - 1));
        let granted = NamedRequest::Granted(u32::MAX);
        let all = [("r1", granted), ("r2", waiting(true)), ("", waiting(false)), ("r3", awaiting)];
        all.iter().for_each(|(request_id, named)| index.insert(request_id, *named));
        assert_eq!((index.len(), index.iter().count()), (4, 4));
        for (request_id, named) in all {
            assert!(index.alike(request_id).eq([named]));
            index.remove("another", named);
            index.remove(request_id, named);
            assert!(index.alike(request_id).next().is_none());
        }
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn claims_are_kept_in_order_of_node() {
        let mut live = LiveClaims::default();
        for (node, mode) in [(3, Mode::Read), (1, Mode::Write), (2, Mode::Read), (3, Mode::Write)] {
            live.insert(NodeId(node), mode);
        }
        let all = [(1, Mode::Write), (2, Mode::Read), (3, Mode::Write)];
        assert!(live.iter().eq(all.map(|(node, mode)| (NodeId(node), mode))));
        for (left, node) in [(2, 2), (1, 3), (1, 7), (0, 1)] {
            live.remove(NodeId(node));
            assert_eq!((live.len(), live.is_empty()), (left, left == 0));
        }
        live.insert(NodeId(1), Mode::Read);
        live.insert(NodeId(1), Mode::Write);
        assert_eq!(live, LiveClaims::One(NodeId(1), Mode::Write));
    }
}
