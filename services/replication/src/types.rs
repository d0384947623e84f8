//! The types that openraft is instantiated with, and their bytes.

use std::fmt;

use bytes::Bytes;
use openraft::impls::leader_id_std;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::WireError;

/// Node ids are replica ids (never reused); one leader a term.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = EntryData;
    type R = Vec<Bytes>;
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

/// What one log entry carries: the leader's stamp and a batch of commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryData {
    /// The shard clock when the batch was made, in milliseconds.
    pub now_ms: u64,
    /// The leader's wall clock then, in milliseconds since 1970.
    pub wall_ms: u64,
    /// Commands as they came.
    pub commands: Vec<Bytes>,
}

impl fmt::Display for EntryData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} commands at {} ms", self.commands.len(), self.now_ms)
    }
}

pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;
/// A snapshot in pieces of at most 1 MiB.
pub(crate) type Chunks = Vec<Bytes>;
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, Chunks>;

/// Version of everything this crate writes to disk or wire.
const FORMAT: u8 = 1;

/// Room for an entry with a few commands, so that few values have to be moved as they are written.
const TYPICAL_BYTES: usize = 512;

/// Encodes a value: a version byte, then postcard.
pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    let bytes = postcard::to_extend(&(FORMAT, value), Vec::with_capacity(TYPICAL_BYTES));
    Bytes::from(bytes.expect("Raft's types have known lengths and never fail to encode"))
}

/// Decodes what [`encode`] wrote.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => Ok(postcard::from_bytes(rest)?),
        Some((&other, _)) => Err(WireError::Format(other)),
        None => Err(WireError::Empty),
    }
}
