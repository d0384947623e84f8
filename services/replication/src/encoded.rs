//! Entries as they are stored and sent. Both are encoded as openraft's types are, without a copy of the blocks: a block is
//! made once, by the leader, and what surrounds it takes a few bytes.

use bytes::{BufMut, Bytes};
use openraft::{EntryPayload, Membership};
use serde::Serialize;

use crate::types::{AppendEntriesRequest, ENTRY_FORMAT, Entry, LogId, put};

/// Bytes of an entry besides its block, unless it is a membership.
const ENTRY_HEAD_BYTES: usize = 32;
/// Bytes of an append besides its entries.
const APPEND_HEAD_BYTES: usize = 64;

/// The content of a message. Blocks in it are shared with the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoded {
    /// Everything but the blocks.
    own: Bytes,
    /// The blocks, each with the length of `own` before it.
    blocks: Vec<(usize, Bytes)>,
}

impl From<Bytes> for Encoded {
    fn from(own: Bytes) -> Self {
        Self { own, blocks: Vec::new() }
    }
}

impl Encoded {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.blocks.iter().map(|(_, block)| block.len()).sum::<usize>()
    }

    /// Appends the bytes, in order.
    pub(crate) fn put_to(&self, buffer: &mut impl BufMut) {
        let mut taken = 0;
        for (position, block) in &self.blocks {
            buffer.put_slice(&self.own[taken..*position]);
            buffer.put_slice(block);
            taken = *position;
        }
        buffer.put_slice(&self.own[taken..]);
    }

    /// Returns a copy of the bytes.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.len());
        self.put_to(&mut bytes);
        bytes.into()
    }
}

/// The encoding of an [`Entry`] up to its block, which ends it.
#[derive(Serialize)]
struct EntryHead<'e> {
    log_id: &'e LogId,
    payload: PayloadHead<'e>,
}

#[derive(Serialize)]
enum PayloadHead<'e> {
    Blank,
    Normal { block_bytes: usize },
    Membership(&'e Membership<u64, ()>),
}

/// Splits an entry into what is still to be encoded and its block, if it has one.
fn split(entry: &Entry) -> (EntryHead<'_>, Option<Bytes>) {
    let (payload, block) = match &entry.payload {
        EntryPayload::Blank => (PayloadHead::Blank, None),
        EntryPayload::Normal(data) => (PayloadHead::Normal { block_bytes: data.block.len() }, Some(data.block.clone())),
        EntryPayload::Membership(members) => (PayloadHead::Membership(members), None),
    };
    (EntryHead { log_id: &entry.log_id, payload }, block)
}

/// Encodes an entry for the log: its row is the bytes, and then the block.
pub(crate) fn encode_entry(entry: &Entry) -> (Vec<u8>, Bytes) {
    let (head, block) = split(entry);
    (put(Vec::with_capacity(ENTRY_HEAD_BYTES), &(ENTRY_FORMAT, head)), block.unwrap_or_default())
}

/// Encodes an append or a heartbeat.
pub(crate) fn encode_append(request: &AppendEntriesRequest) -> Encoded {
    let AppendEntriesRequest { vote, prev_log_id, entries, leader_commit } = request;
    let own = Vec::with_capacity(APPEND_HEAD_BYTES + entries.len() * ENTRY_HEAD_BYTES);
    let (mut own, mut blocks) = (put(own, &(ENTRY_FORMAT, vote, prev_log_id, entries.len())), Vec::new());
    for entry in entries {
        let (head, block) = split(entry);
        own = put(own, &head);
        blocks.extend(block.map(|block| (own.len(), block)));
    }
    Encoded { own: put(own, leader_commit).into(), blocks }
}

#[cfg(test)]
mod tests {
    use openraft::vote::RaftLeaderId;

    use super::*;
    use crate::entry::{EntryData, GroupCommand, Section};
    use crate::types::{Vote, decode_append, decode_entry};

    fn id(term: u64, index: u64) -> LogId {
        LogId::new(RaftLeaderId::to_committed(&Vote::new_committed(term, 1).leader_id), index)
    }

    /// An entry of each kind, with blocks of several lengths.
    fn entries() -> Vec<Entry> {
        let commands = |lengths: &[usize]| {
            let commands = lengths.iter().map(|length| Bytes::from(vec![7; *length])).collect();
            EntryPayload::Normal(EntryData::commands(2, 1_000, 1 << 40, &[Section { shard: 3, commands }]))
        };
        let members = Membership::new_with_defaults(vec![[1, 2, 3].into(), [2, 3, 4].into()], [5]);
        let payloads = [
            EntryPayload::Blank,
            commands(&[]),
            EntryPayload::Membership(members),
            commands(&[90, 160, 0]),
            EntryPayload::Normal(EntryData::structural(2, 1, 2, GroupCommand::RaiseRules(3))),
            commands(&[70_000; 3]),
            commands(&[1; 512]),
        ];
        payloads.into_iter().zip(300..).map(|(payload, index)| Entry { log_id: id(1 << 40, index), payload }).collect()
    }

    fn block(entry: &Entry) -> Option<&Bytes> {
        match &entry.payload {
            EntryPayload::Normal(data) => Some(&data.block),
            _ => None,
        }
    }

    fn is_same(one: &Bytes, other: &Bytes) -> bool {
        (one.as_ptr(), one.len()) == (other.as_ptr(), other.len())
    }

    #[test]
    fn a_row_is_encoded_as_its_entry_is_and_shares_the_block() {
        for entry in entries() {
            let (head, body) = encode_entry(&entry);
            let row = [&head[..], &body].concat();
            assert_eq!(row, postcard::to_stdvec(&(ENTRY_FORMAT, &entry)).unwrap());
            assert_eq!(decode_entry(&row).unwrap(), entry);
            match block(&entry) {
                Some(block) => assert!(is_same(&body, block) && head.len() <= ENTRY_HEAD_BYTES),
                None => assert!(body.is_empty()),
            }
        }
    }

    #[test]
    fn appends_are_encoded_as_requests_are_and_share_the_blocks() {
        let vote = Vote::new_committed(1 << 40, 3);
        let of = |entries: &[Entry], leader_commit| {
            let (prev_log_id, entries) = (leader_commit, entries.to_vec());
            AppendEntriesRequest { vote, prev_log_id, entries, leader_commit }
        };
        let entries = entries();
        // To two followers, which know of different entries as committed; and a heartbeat.
        for request in [of(&entries, None), of(&entries[1..], Some(id(1, 299))), of(&[], Some(id(2, 310)))] {
            let encoded = encode_append(&request);
            let bytes = encoded.to_bytes();
            assert_eq!(bytes, postcard::to_stdvec(&(ENTRY_FORMAT, &request)).unwrap());
            assert_eq!(encoded.len(), bytes.len());
            assert_eq!(decode_append(&bytes).unwrap().entries, request.entries);
            let sent: Vec<&Bytes> = encoded.blocks.iter().map(|(_, block)| block).collect();
            let blocks: Vec<&Bytes> = request.entries.iter().filter_map(block).collect();
            assert!(sent.len() == blocks.len() && sent.iter().zip(blocks).all(|(sent, block)| is_same(sent, block)));
        }
    }

    /// What the leader sends is what a follower stores, byte for byte, without another look at the commands.
    #[test]
    fn a_follower_stores_the_row_of_the_leader() {
        let entries = entries();
        let vote = Vote::new_committed(1 << 40, 3);
        let request = AppendEntriesRequest { vote, prev_log_id: None, entries, leader_commit: None };
        let received = decode_append(&encode_append(&request).to_bytes()).unwrap();
        for (sent, received) in request.entries.iter().zip(&received.entries) {
            assert_eq!(encode_entry(received), encode_entry(sent));
        }
        assert_eq!(received.entries.len(), request.entries.len());
    }
}
