//! The type configuration of openraft, and the encodings.

use bytes::Bytes;
use holdfast_storage::StoredSnapshot;
use openraft::impls::leader_id_std;
use openraft::{EntryPayload, Membership};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::entry::{EntryData, FIRST_RULES, Section};
use crate::error::WireError;
use crate::rules::GroupState;
use crate::sent_snapshot::SentSnapshot;

/// Node ids are replica ids (never reused); one leader per term.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = EntryData;
    type R = ();
    type NodeId = u64;
    type Node = ();
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<EntryData, u64, ()>;
    type Entry = openraft::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = crate::ticks::Runtime;
    type Responder<T>
        = openraft::impls::OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type AppendEntriesRequest = openraft::raft::AppendEntriesRequest<TypeConfig>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotData>;

/// A snapshot of a group, in the store.
#[derive(Clone, Debug)]
pub struct SnapshotData {
    pub(crate) group: GroupState,
    /// The machine's state.
    pub(crate) stored: StoredSnapshot,
    /// Which snapshot the replica is sending.
    pub(crate) sent: SentSnapshot,
}

/// Format version of votes, log ids and all messages between replicas except appends.
const FORMAT: u8 = 1;
/// Format version of entries and appends. Entries of version 1, which have no block, are decoded from old logs.
pub(crate) const ENTRY_FORMAT: u8 = 2;
/// Format version of snapshot metadata. Version 1 does not name the rules, which are then the first.
const META_FORMAT: u8 = 2;

/// Initial capacity that fits most values, which avoids reallocation.
const TYPICAL_BYTES: usize = 512;

/// Encodes a value: a version byte, then postcard.
pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    encode_as(FORMAT, value)
}

/// Decodes a value written by [`encode`].
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    decode_as(FORMAT, bytes)
}

/// Decodes an entry of the log, including entries without a block.
pub(crate) fn decode_entry(bytes: &[u8]) -> Result<Entry, WireError> {
    if bytes.first() == Some(&FORMAT) {
        return decode_as(FORMAT, bytes).map(EntryV1::into_entry);
    }
    decode_as(ENTRY_FORMAT, bytes)
}

/// Decodes an append or a heartbeat. Copies the blocks: as slices, small ones would keep large frames in memory for as
/// long as the log cache has them.
pub(crate) fn decode_append(bytes: &[u8]) -> Result<AppendEntriesRequest, WireError> {
    decode_as(ENTRY_FORMAT, bytes)
}

/// Encodes snapshot metadata.
pub(crate) fn encode_meta(meta: &SnapshotMeta, group: &GroupState) -> Bytes {
    encode_as(META_FORMAT, &(meta, group))
}

/// Decodes snapshot metadata, including metadata without rules.
pub(crate) fn decode_meta(bytes: &[u8]) -> Result<(SnapshotMeta, GroupState), WireError> {
    if bytes.first() == Some(&FORMAT) {
        return Ok((decode_as(FORMAT, bytes)?, GroupState { rules: Some(FIRST_RULES), ..GroupState::default() }));
    }
    decode_as(META_FORMAT, bytes)
}

fn encode_as<T: Serialize>(format: u8, value: &T) -> Bytes {
    put(Vec::with_capacity(TYPICAL_BYTES), &(format, value)).into()
}

/// Appends the encoding of a value.
pub(crate) fn put<T: Serialize>(bytes: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::to_extend(value, bytes).expect("Raft's types have known lengths and never fail to encode")
}

fn decode_as<T: DeserializeOwned>(format: u8, bytes: &[u8]) -> Result<T, WireError> {
    match bytes.split_first() {
        Some((found, rest)) if *found == format => Ok(postcard::from_bytes(rest)?),
        Some((&other, _)) => Err(WireError::Format(other)),
        None => Err(WireError::Empty),
    }
}

/// An entry of version 1.
#[derive(Deserialize)]
struct EntryV1 {
    log_id: LogId,
    payload: PayloadV1,
}

#[derive(Deserialize)]
enum PayloadV1 {
    Blank,
    Normal { now_ms: u64, wall_ms: u64, commands: Vec<Bytes> },
    Membership(Membership<u64, ()>),
}

impl EntryV1 {
    fn into_entry(self) -> Entry {
        let payload = match self.payload {
            PayloadV1::Blank => EntryPayload::Blank,
            PayloadV1::Normal { now_ms, wall_ms, commands } => {
                let sections = [Section { shard: 0, commands }];
                EntryPayload::Normal(EntryData::commands(FIRST_RULES, now_ms, wall_ms, &sections))
            }
            PayloadV1::Membership(members) => EntryPayload::Membership(members),
        };
        Entry { log_id: self.log_id, payload }
    }
}

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId;

    use super::*;
    use crate::entry::Body;
    use crate::exceptions::Exception;

    fn id(term: u64, index: u64) -> LogId {
        LogId::new(RaftLeaderId::to_committed(&Vote::new_committed(term, 1).leader_id), index)
    }

    fn read(hex: &str) -> Entry {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        decode_entry(&bytes).unwrap()
    }

    /// Entries as written to a data directory by a program from before entries had blocks.
    #[test]
    fn entries_of_version_1_are_read_as_they_were_meant() {
        let entry = read("010000020101010101");
        assert_eq!(entry.log_id, id(0, 0));
        assert_eq!(entry.payload, EntryPayload::Membership(Membership::new_with_defaults(vec![[1].into()], [1])));
        let entry = read("01010100");
        assert_eq!((entry.log_id, entry.payload), (id(1, 1), EntryPayload::Blank));
        let entry = read("010103011cb2f9a5cda034010401030101");
        assert_eq!(entry.log_id, id(1, 3));
        let EntryPayload::Normal(data) = entry.payload else { panic!("it has commands") };
        let block = data.read().unwrap();
        assert_eq!((block.rules, block.now_ms, block.wall_ms), (1, 28, 1_795_458_432_178));
        let commands = vec![Bytes::from_static(&[1, 3, 1, 1])];
        assert_eq!(block.body, Body::Commands(vec![Section { shard: 0, commands }]));
    }

    #[test]
    fn snapshots_are_written_in_version_2_and_read_back() {
        let meta = SnapshotMeta { last_log_id: Some(id(3, 4)), last_membership: StoredMembership::default() };
        let exceptions = vec![Exception { shard: 3, index: 4, what: Bytes::from_static(b"it") }];
        let group = GroupState { rules: Some(2), exceptions };
        let written = encode_meta(&meta, &group);
        assert_eq!((written[0], decode_meta(&written).unwrap()), (2, (meta.clone(), group)));
        let (first, group) = (encode(&meta), GroupState { rules: Some(1), ..GroupState::default() });
        assert_eq!(decode_meta(&first).unwrap(), (meta, group), "of before they named rules");
    }
}
