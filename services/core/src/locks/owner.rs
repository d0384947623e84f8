//! Owners, each stored once, however much it holds and waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::event_view::OwnerView;
use super::name::Name;
use super::queue::QueuePosition;
use super::slab::Slab;
use super::tree::NodeId;
use super::waiting::ClaimSet;
use crate::{Owner, SessionNumber, WaitId};

/// Identifies an owner that holds or waits in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OwnerId(pub(super) u32);

/// An owner that neither holds nor waits yet.
pub(super) const NO_OWNER: OwnerId = OwnerId(u32::MAX);

/// The identity of an owner.
#[derive(Clone, Debug)]
pub(super) enum OwnerName {
    Process(Name),
    Session(Box<SessionOwner>),
}

/// An owner that belongs or belonged to a session: a hold in transition outlives its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionOwner {
    pub(super) number: SessionNumber,
    pub(super) session_id: Arc<str>,
    pub(super) process_id: Arc<str>,
    pub(super) holder: Option<Box<str>>,
}

/// The lookup key of an owner. Sessions are keyed by number, so that the remaining holds of an ended session do not
/// belong to a later session with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OwnerKey<'a> {
    Process(&'a str),
    Session(SessionNumber, Option<&'a str>),
}

/// The holds and waits of an owner.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnerRecord {
    pub(super) holds: NodeSet,
    pub(super) waits: Option<Box<OwnerWaits>>,
}

/// The waiting requests of an owner, and its awaits.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnerWaits {
    pub(super) positions: BTreeSet<QueuePosition>,
    /// The claims of its waiting requests.
    pub(super) claims: BTreeSet<(NodeId, QueuePosition)>,
    /// Its waiting requests by the key that a repeat carries.
    pub(super) by_key: BTreeMap<WaitKey, QueuePosition>,
    /// Its awaits of conditions. They wait for nobody.
    pub(super) awaits: BTreeSet<WaitId>,
}

/// The key by which a repeat finds the waiting request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitKey {
    /// The request id, for a process; a session stores the request ids of its owners.
    Named(Box<str>),
    /// The claims.
    Claims(ClaimSet),
}

/// The paths that an owner holds.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::box_collection,
    reason = "a million owners have one hold each, and a set would make all of them larger"
)]
pub(super) enum NodeSet {
    #[default]
    None,
    One(NodeId),
    Many(Box<BTreeSet<NodeId>>),
}

impl NodeSet {
    pub(super) fn insert(&mut self, node: NodeId) {
        match self {
            Self::None => *self = Self::One(node),
            Self::One(first) => *self = Self::Many(Box::new(BTreeSet::from([*first, node]))),
            Self::Many(nodes) => drop(nodes.insert(node)),
        }
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        match self {
            Self::None => {}
            Self::One(_) => *self = Self::None,
            Self::Many(nodes) => {
                nodes.remove(&node);
                if let (1, Some(last)) = (nodes.len(), nodes.first()) {
                    *self = Self::One(*last);
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(nodes) => nodes.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NodeId> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(node) => (Some(*node), None),
            Self::Many(nodes) => (None, Some(nodes.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl OwnerRecord {
    pub(super) fn queue_positions(&self) -> impl DoubleEndedIterator<Item = QueuePosition> {
        self.waits.iter().flat_map(|awaits| awaits.positions.iter().copied())
    }

    pub(super) fn wait_count(&self) -> usize {
        self.waits.as_ref().map_or(0, |awaits| awaits.positions.len())
    }

    /// Returns its awaits, in order of arrival.
    pub(super) fn await_ids(&self) -> impl Iterator<Item = WaitId> {
        self.waits.iter().flat_map(|waits| waits.awaits.iter().copied())
    }

    /// Returns the number of its waiting requests and awaits.
    pub(super) fn request_count(&self) -> usize {
        self.waits.as_ref().map_or(0, |waits| waits.positions.len() + waits.awaits.len())
    }

    /// Removes an await.
    pub(super) fn remove_await(&mut self, wait: WaitId) {
        if let Some(waits) = self.waits.as_mut() {
            waits.awaits.remove(&wait);
            if waits.positions.is_empty() && waits.awaits.is_empty() {
                self.waits = None;
            }
        }
    }

    /// Returns the number of claims of its waiting requests.
    pub(super) fn waiting_claim_count(&self) -> usize {
        self.waits.as_ref().map_or(0, |awaits| awaits.claims.len())
    }
}

impl OwnerName {
    pub(super) fn session(&self) -> Option<&SessionOwner> {
        match self {
            Self::Process(_) => None,
            Self::Session(session) => Some(session),
        }
    }

    pub(super) fn to_owner(&self) -> Owner {
        match self {
            Self::Process(process_id) => Owner::Process(process_id.as_str().to_owned()),
            Self::Session(session) => Owner::Session {
                session_id: session.session_id.to_string(),
                holder: session.holder.as_deref().map(str::to_owned),
            },
        }
    }

    pub(super) fn view(&self) -> OwnerView<'_> {
        match self {
            Self::Process(process_id) => OwnerView::Process(process_id.as_str()),
            Self::Session(session) => {
                OwnerView::Session { session_id: &session.session_id, holder: session.holder.as_deref() }
            }
        }
    }

    pub(super) fn process_id(&self) -> &str {
        match self {
            Self::Process(process_id) => process_id.as_str(),
            Self::Session(session) => &session.process_id,
        }
    }

    fn key(&self) -> OwnerKey<'_> {
        match self {
            Self::Process(process_id) => OwnerKey::Process(process_id.as_str()),
            Self::Session(session) => OwnerKey::Session(session.number, session.holder.as_deref()),
        }
    }
}

/// The owners of a namespace. They are indexed by a hash whose order is never visible; each name is stored once.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    /// Separate from the records, because a snapshot needs only the names.
    names: Slab<OwnerName>,
    /// Under the same ids as the names.
    records: Slab<OwnerRecord>,
    by_hash: BTreeSet<(HashBytes, OwnerId)>,
    /// The charge of all owners.
    charge: u64,
}

impl Owners {
    /// See [`Slab::shuffle`].
    pub(super) fn shuffle(&mut self, seed: u64) {
        self.names.shuffle(seed);
        self.records.shuffle(seed);
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn charge(&self) -> u64 {
        self.charge
    }

    pub(super) fn find(&self, key: OwnerKey<'_>) -> Option<OwnerId> {
        let hash = hash_of(key);
        let alike = self.by_hash.range((hash, OwnerId(0))..=(hash, OwnerId(u32::MAX)));
        alike.map(|(_, id)| *id).find(|id| self.name(*id).key() == key)
    }

    pub(super) fn get_or_insert(&mut self, name: OwnerName) -> OwnerId {
        let key = name.key();
        if let Some(id) = self.find(key) {
            return id;
        }
        let hash = hash_of(key);
        self.charge += name.charge();
        let id = OwnerId(self.names.insert(name));
        assert_eq!(self.records.insert(OwnerRecord::default()), id.0, "names and records come and go together");
        self.by_hash.insert((hash, id));
        id
    }

    /// Returns the current names. A clone is cheap and unaffected by later changes.
    pub(super) fn names(&self) -> &Slab<OwnerName> {
        &self.names
    }

    pub(super) fn name(&self, id: OwnerId) -> &OwnerName {
        self.names.get(id.0)
    }

    pub(super) fn name_mut(&mut self, id: OwnerId) -> &mut OwnerName {
        self.names.get_mut(id.0)
    }

    pub(super) fn get(&self, id: OwnerId) -> &OwnerRecord {
        self.records.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: OwnerId) -> &mut OwnerRecord {
        self.records.get_mut(id.0)
    }

    pub(super) fn contains(&self, id: OwnerId) -> bool {
        self.records.find(id.0).is_some()
    }

    /// Removes an owner that neither holds nor waits. Returns whether it was removed.
    pub(super) fn remove_if_idle(&mut self, id: OwnerId) -> bool {
        let record = self.get(id);
        if record.holds.len() > 0 || record.waits.is_some() {
            return false;
        }
        let hash = hash_of(self.name(id).key());
        self.by_hash.remove(&(hash, id));
        self.charge -= self.names.remove(id.0).charge();
        self.records.remove(id.0);
        true
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerId, &OwnerRecord)> {
        self.records.iter().map(|(number, record)| (OwnerId(number), record))
    }
}

/// A full hash, aligned such that it takes twelve bytes together with an owner id instead of sixteen.
type HashBytes = [u32; 2];

fn hash_of(key: OwnerKey<'_>) -> HashBytes {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let hash = hasher.finish();
    [(hash >> 32) as u32, hash as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str) -> OwnerName {
        OwnerName::Process(name.into())
    }

    fn session(number: SessionNumber, holder: Option<&str>) -> OwnerName {
        let (session_id, process_id) = ("se_1".into(), "p".into());
        OwnerName::Session(Box::new(SessionOwner { number, session_id, process_id, holder: holder.map(Into::into) }))
    }

    #[test]
    fn owners_are_told_apart_by_all_that_names_them() {
        let mut owners = Owners::default();
        let names = [process("p"), process("q"), session(1, None), session(1, Some("p")), session(2, None)];
        let ids: Vec<OwnerId> = names.iter().map(|name| owners.get_or_insert(name.clone())).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.iter().zip(&ids).all(|(name, id)| owners.find(name.key()) == Some(*id)));
        assert!(ids.iter().all(|id| owners.remove_if_idle(*id)));
        assert_eq!((owners.len(), owners.by_hash.len()), (0, 0));
    }

    #[test]
    fn an_owner_takes_little_memory() {
        let (name, record) = (size_of::<OwnerName>(), size_of::<OwnerRecord>());
        assert!(name + record <= 48, "an owner takes {name} and {record} bytes");
    }
}
