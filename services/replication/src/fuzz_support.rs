//! Decoders of all input from disk and peers, for tests with corrupted bytes.

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{EntryPayload, Membership};
use serde::de::DeserializeOwned;

use crate::checkpoints::RebuildQuery;
use crate::encoded::{encode_append, encode_entry};
use crate::entry::{EntryData, GroupCommand, Section};
use crate::exceptions::Exception;
use crate::poison::{self, Poison};
use crate::types::{
    AppendEntriesRequest, Entry, LogId, TypeConfig, Vote, decode, decode_append, decode_entry, decode_meta, encode,
};

fn decodes<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    decode::<T>(bytes).is_ok()
}

/// Decodes an entry and its commands, if it has any.
fn decodes_entry(bytes: &[u8]) -> bool {
    decode_entry(bytes).is_ok_and(|entry| is_whole(&entry))
}

fn is_whole(entry: &Entry) -> bool {
    match &entry.payload {
        EntryPayload::Normal(data) => data.read().is_ok(),
        _ => true,
    }
}

/// Decodes stored data of a replica; returns true if any decoder accepts the bytes.
pub fn read_stored(bytes: &[u8]) -> bool {
    let of_log = decodes_entry(bytes) | decodes::<Vote>(bytes) | decodes::<LogId>(bytes);
    of_log | decode_meta(bytes).is_ok() | decodes::<Option<Poison>>(bytes) | poison::decodes_shard_records(bytes)
}

/// Decodes messages between replicas; returns true if any decoder accepts the bytes.
pub fn read_message(bytes: &[u8]) -> bool {
    let asked = decode_append(bytes).is_ok_and(|append| append.entries.iter().all(is_whole))
        | decodes::<VoteRequest<TypeConfig>>(bytes)
        | decodes::<RebuildQuery>(bytes)
        | decodes::<TransferLeaderRequest<TypeConfig>>(bytes);
    let answered = decodes::<AppendEntriesResponse<TypeConfig>>(bytes)
        | decodes::<VoteResponse<TypeConfig>>(bytes)
        | decodes::<SnapshotResponse<TypeConfig>>(bytes)
        | decodes::<TransferLeaderResponse<TypeConfig>>(bytes);
    asked | answered
}

/// Returns encoded entries, a vote and an append as seeds.
pub fn stored_samples() -> Vec<Bytes> {
    let vote = Vote::new_committed(7, 3);
    let id = |index| LogId::new(openraft::vote::RaftLeaderId::to_committed(&vote.leader_id), index);
    let members = Membership::new_with_defaults(vec![[1, 2, 3].into()], [4]);
    let commands = vec![Bytes::from_static(&[1, 2, 3]); 3];
    let data = EntryData::commands(1, 1, 2, &[Section { shard: 0, commands }, Section { shard: 4, commands: vec![] }]);
    let raised = EntryData::structural(1, 1, 2, GroupCommand::RaiseRules(2));
    let checkpoint = EntryData::structural(1, 1, 2, GroupCommand::Checkpoint { shard: 4, from: Some(1) });
    let exception = Exception { shard: 4, index: 5, what: Bytes::from_static(&[1, 2, 3]) };
    let quarantine = EntryData::structural(1, 1, 2, GroupCommand::Quarantine(exception));
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Membership(members),
        EntryPayload::Normal(data),
        EntryPayload::Normal(raised),
        EntryPayload::Normal(checkpoint),
        EntryPayload::Normal(quarantine),
    ];
    let entries: Vec<Entry> =
        payloads.into_iter().zip(5..).map(|(payload, index)| Entry { log_id: id(index), payload }).collect();
    let append =
        AppendEntriesRequest { vote, prev_log_id: Some(id(4)), entries: entries.clone(), leader_commit: Some(id(3)) };
    let mut samples = vec![encode(&vote), encode(&id(9)), encode_append(&append).to_bytes()];
    samples.extend(poison::samples());
    samples.extend(entries.iter().map(encode_entry).map(|(head, block)| Bytes::from([&head[..], &block].concat())));
    samples
}
