//! The encoding of an entry: its rules, its time and its commands.
//!
//! ```text
//! block   := rules u16 · now_ms u64 · wall_ms u64 · kind u8 · body           all varints but the kind
//! body    := Commands: count, then sections in order of shard number, each shard at most once
//!          | Structural: one GroupCommand
//! section := shard number · length in bytes · count · (length · command)*    a count of 0 moves the clock only
//! ```
//!
//! The leader encodes a block once; the log, frames to followers and the state machine use it unchanged. A replica
//! never skips an undecodable entry: its state would diverge from that of replicas that can decode it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::WireError;
use crate::exceptions::Exception;
use crate::reply_sinks::ReplySinks;
use crate::rules::GroupState;
use crate::state_machine::EntryHeader;
use crate::types::{LogId, put};

/// The rules of entries written before entries named their rules.
pub(crate) const FIRST_RULES: u16 = 1;

const COMMANDS: u8 = 0;
const STRUCTURAL: u8 = 1;

/// Maximum bytes of a block besides its sections: rules, two clocks, kind and the number of sections.
const MAX_HEADER_BYTES: usize = 32;
/// Maximum bytes of a section besides its commands.
const MAX_SECTION_HEADER_BYTES: usize = 15;

/// The payload of an openraft entry: a block, whose commands are slices of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EntryData {
    pub(crate) block: Bytes,
    /// Only on the replica that proposed the entry: where its replies go. Part of the entry and not of a map of indexes,
    /// because another leader may write a different entry at the same index.
    #[serde(skip)]
    pub(crate) replies: Option<Arc<ReplySinks>>,
}

/// Replies are no part of what is replicated.
impl PartialEq for EntryData {
    fn eq(&self, other: &Self) -> bool {
        self.block == other.block
    }
}

impl Eq for EntryData {}

/// The commands of an entry for one shard of the group; without commands, it only advances the shard's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The number of the shard in its group.
    pub shard: u32,
    /// Encoded commands.
    pub commands: Vec<Bytes>,
}

impl Section {
    /// Copies the commands, so that they do not hold their whole entry in memory.
    pub(crate) fn detach(&mut self) {
        self.commands.iter_mut().for_each(|command| *command = Bytes::copy_from_slice(command));
    }

    /// Returns the encoded size of the count and the commands.
    fn body_bytes(&self) -> usize {
        let framed = |command: &Bytes| varint_bytes(size(command.len())) + command.len();
        varint_bytes(size(self.commands.len())) + self.commands.iter().map(framed).sum::<usize>()
    }
}

impl fmt::Display for EntryData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a block of {} bytes", self.block.len())
    }
}

/// A change of the group itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GroupCommand {
    /// From the next entry on these rules apply, unless higher ones already do.
    RaiseRules(u16),
    /// Every replica where this shard serves digests its state here; where it has failed, it may be built again from
    /// such a state.
    Checkpoint {
        /// The number of the shard.
        shard: u32,
        /// The only replica whose state counts, if an operator has named one; else a majority decides.
        from: Option<u64>,
    },
    /// From now on this is left out: every replica builds the state of the shard again without it.
    Quarantine(Exception),
}

/// A decoded block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The rules that the proposer knew to be in effect. The effective ones may be higher: see
    /// [`GroupCommand::RaiseRules`].
    pub(crate) rules: u16,
    pub(crate) now_ms: u64,
    pub(crate) wall_ms: u64,
    pub(crate) body: Body,
}

impl Block {
    /// Returns the header by which the sections are applied, given the state of the group after the entry. An entry that
    /// was in flight when the rules were raised names the earlier ones, but is applied by the new ones.
    pub(crate) fn header(&self, id: LogId, group: &GroupState) -> EntryHeader {
        let (term, index, rules) = (id.leader_id.term, id.index, group.rules.unwrap_or(self.rules));
        EntryHeader { term, index, rules, now_ms: self.now_ms, wall_ms: self.wall_ms }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In order of shard number, each shard at most once.
    Commands(Vec<Section>),
    Structural(GroupCommand),
}

#[derive(Serialize, Deserialize)]
struct BlockHeader {
    rules: u16,
    now_ms: u64,
    wall_ms: u64,
    kind: u8,
}

impl EntryData {
    /// Creates an entry from sections in order of shard number, each shard at most once.
    pub fn commands(rules: u16, now_ms: u64, wall_ms: u64, sections: &[Section]) -> Self {
        let sizes: usize = sections.iter().map(|section| MAX_SECTION_HEADER_BYTES + section.body_bytes()).sum();
        let block = Vec::with_capacity(MAX_HEADER_BYTES + sizes);
        let block = put(block, &BlockHeader { rules, now_ms, wall_ms, kind: COMMANDS });
        let mut block = put(block, &size(sections.len()));
        for section in sections {
            block = put(block, &(section.shard, size(section.body_bytes()), size(section.commands.len())));
            for command in &section.commands {
                block = put(block, &size(command.len()));
                block.extend_from_slice(command);
            }
        }
        Self { block: block.into(), replies: None }
    }

    /// Sets where the replies go.
    pub(crate) fn with_replies(self, replies: Arc<ReplySinks>) -> Self {
        Self { replies: Some(replies), ..self }
    }

    /// Creates an entry that changes the group itself.
    pub(crate) fn structural(rules: u16, now_ms: u64, wall_ms: u64, command: GroupCommand) -> Self {
        let head = put(Vec::with_capacity(MAX_HEADER_BYTES), &BlockHeader { rules, now_ms, wall_ms, kind: STRUCTURAL });
        Self { block: put(head, &command).into(), replies: None }
    }

    /// Decodes the whole block; its commands share its memory.
    pub(crate) fn read(&self) -> Result<Block, WireError> {
        let (head, rest) = postcard::take_from_bytes::<BlockHeader>(&self.block)?;
        let BlockHeader { rules, now_ms, wall_ms, kind } = head;
        let body = match kind {
            COMMANDS => Body::Commands(self.sections(rest)?),
            STRUCTURAL => Body::Structural(decode_exact(rest)?),
            other => return Err(WireError::Kind(other)),
        };
        Ok(Block { rules, now_ms, wall_ms, body })
    }

    fn sections(&self, rest: &[u8]) -> Result<Vec<Section>, WireError> {
        let (count, mut rest) = postcard::take_from_bytes::<u32>(rest)?;
        // Each section takes at least three bytes.
        let mut sections: Vec<Section> = Vec::with_capacity(capacity(count, rest.len() / 3));
        for _ in 0..count {
            let ((shard, length), after) = postcard::take_from_bytes::<(u32, u32)>(rest)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let (body, after) = after.split_at_checked(length).ok_or(WireError::Block("a section is cut short"))?;
            if sections.last().is_some_and(|before| before.shard >= shard) {
                return Err(WireError::Block("sections are not in order of their shards"));
            }
            sections.push(Section { shard, commands: self.commands_of(body)? });
            rest = after;
        }
        if rest.is_empty() { Ok(sections) } else { Err(WireError::Block("something follows the last section")) }
    }

    fn commands_of(&self, body: &[u8]) -> Result<Vec<Bytes>, WireError> {
        let (count, mut rest) = postcard::take_from_bytes::<u32>(body)?;
        // Each command takes at least one byte, for its length.
        let mut commands = Vec::with_capacity(capacity(count, rest.len()));
        for _ in 0..count {
            let (command, after) = postcard::take_from_bytes::<&[u8]>(rest)?;
            commands.push(self.block.slice_ref(command));
            rest = after;
        }
        if rest.is_empty() { Ok(commands) } else { Err(WireError::Block("something follows the last command")) }
    }
}

/// Returns the capacity for a list that claims a count, and can have no more than `at_most` items.
fn capacity(count: u32, at_most: usize) -> usize {
    at_most.min(usize::try_from(count).unwrap_or(usize::MAX))
}

fn decode_exact<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, WireError> {
    let (value, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(value) } else { Err(WireError::Block("something follows the command of the group")) }
}

/// Converts a length; entries are limited to slightly more than 1 MiB, so it fits.
fn size(length: usize) -> u32 {
    u32::try_from(length).expect("an entry has far less than 4 GiB")
}

/// Returns the encoded length of a number, at seven bits per byte.
fn varint_bytes(number: u32) -> usize {
    (38 - (number | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(shard: u32, lengths: &[usize]) -> Section {
        Section { shard, commands: lengths.iter().map(|length| Bytes::from(vec![7; *length])).collect() }
    }

    fn data(sections: &[Section]) -> EntryData {
        EntryData::commands(2, 1_000, 1_700_000_000_000, sections)
    }

    #[test]
    fn a_block_has_the_layout_that_every_release_reads() {
        let commands = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"")];
        let sections = [Section { shard: 0, commands }, Section { shard: 300, commands: Vec::new() }];
        let block = EntryData::commands(1, 300, 5, &sections).block;
        // Rules 1, clock 300, wall clock 5, commands; two sections: shard 0, 5 bytes, two commands; shard 300, a tick.
        assert_eq!(block[..], [1, 0xac, 2, 5, 0, 2, 0, 5, 2, 2, b'a', b'b', 0, 0xac, 2, 1, 0]);
        let raised = EntryData::structural(1, 300, 5, GroupCommand::RaiseRules(200)).block;
        assert_eq!(raised[..], [1, 0xac, 2, 5, 1, 0, 0xc8, 1]);
        let checkpoint = EntryData::structural(1, 300, 5, GroupCommand::Checkpoint { shard: 3, from: Some(7) }).block;
        assert_eq!(checkpoint[..], [1, 0xac, 2, 5, 1, 1, 3, 1, 7]);
        let exception = Exception { shard: 3, index: 300, what: Bytes::from_static(b"ab") };
        let quarantine = EntryData::structural(1, 300, 5, GroupCommand::Quarantine(exception)).block;
        assert_eq!(quarantine[..], [1, 0xac, 2, 5, 1, 2, 3, 0xac, 2, 2, b'a', b'b']);
    }

    #[test]
    fn a_block_reads_back_what_it_was_made_of() {
        for lengths in [&[][..], &[0], &[1, 127, 128, 20_000], &[70_000; 3], &[1; 512]] {
            for shards in [&[][..], &[0], &[1, 2, 3], &[5, 70_000]] {
                let sections: Vec<Section> = shards.iter().map(|shard| section(*shard, lengths)).collect();
                let block = data(&sections).read().unwrap();
                assert_eq!((block.rules, block.now_ms, block.wall_ms), (2, 1_000, 1_700_000_000_000));
                assert_eq!(block.body, Body::Commands(sections));
            }
        }
        let quarantine = GroupCommand::Quarantine(Exception { shard: 1, index: 1 << 40, what: Bytes::new() });
        for command in [GroupCommand::RaiseRules(3), GroupCommand::Checkpoint { shard: 70_000, from: None }, quarantine]
        {
            let data = EntryData::structural(2, 1, 2, command.clone());
            assert_eq!(data.read().unwrap().body, Body::Structural(command));
        }
    }

    #[test]
    fn a_block_that_is_cut_short_or_goes_on_is_refused() {
        let several = data(&[section(0, &[3, 0, 200]), section(4, &[]), section(9, &[1])]);
        for data in [several, EntryData::structural(2, 1, 2, GroupCommand::RaiseRules(3))] {
            for length in 0..data.block.len() {
                let short = EntryData { block: data.block.slice(..length), replies: None };
                assert!(short.read().is_err(), "{length} of {} bytes were read", data.block.len());
            }
            let long = EntryData { block: [&data.block[..], &[0]].concat().into(), replies: None };
            assert!(long.read().is_err());
        }
    }

    #[test]
    fn other_kinds_and_sections_out_of_order_are_refused_by_name() {
        let refusal = |bytes: &[u8]| {
            let data = EntryData { block: Bytes::copy_from_slice(bytes), replies: None };
            data.read().unwrap_err().to_string()
        };
        assert!(refusal(&[1, 0, 0, 9, 0]).contains("kind 9"), "{}", refusal(&[1, 0, 0, 9, 0]));
        for out_of_order in [&[1, 0, 0, 0, 2, 7, 1, 0, 7, 1, 0], &[1, 0, 0, 0, 2, 7, 1, 0, 6, 1, 0]] {
            assert!(refusal(out_of_order).contains("in order"), "{}", refusal(out_of_order));
        }
    }
}
