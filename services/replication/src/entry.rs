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

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::WireError;

/// The rules of entries written before entries named their rules.
pub(crate) const FIRST_RULES: u16 = 1;
/// The only section while a group has one shard.
const ONLY_SHARD: u32 = 0;

const COMMANDS: u8 = 0;
const STRUCTURAL: u8 = 1;

/// Maximum bytes of a block besides its commands: rules, two clocks, kind, and one section header.
const MAX_HEADER_BYTES: usize = 48;
/// Maximum bytes of a command's length prefix.
const MAX_LENGTH_BYTES: usize = 5;

/// The payload of an openraft entry: a block, whose commands are slices of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryData {
    pub(crate) block: Bytes,
}

impl fmt::Display for EntryData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a block of {} bytes", self.block.len())
    }
}

/// A change of the group itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GroupCommand {
    /// From the next entry on these rules apply, unless higher ones already do.
    RaiseRules(u16),
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Commands of the group's one shard.
    Commands(Vec<Bytes>),
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
    /// Creates an entry with commands for the group's one shard. Without commands it only advances the clock.
    pub fn commands(rules: u16, now_ms: u64, wall_ms: u64, commands: &[Bytes]) -> Self {
        let sizes: usize = commands.iter().map(|command| command.len() + MAX_LENGTH_BYTES).sum();
        let block = Vec::with_capacity(MAX_HEADER_BYTES + sizes);
        let block = put(block, &BlockHeader { rules, now_ms, wall_ms, kind: COMMANDS });
        let count = size(commands.len());
        let framed = |command: &Bytes| varint_bytes(size(command.len())) + command.len();
        let length = varint_bytes(count) + commands.iter().map(framed).sum::<usize>();
        let mut block = put(block, &(1_u32, ONLY_SHARD, size(length), count));
        for command in commands {
            block = put(block, &size(command.len()));
            block.extend_from_slice(command);
        }
        Self { block: block.into() }
    }

    /// Creates an entry that changes the group itself.
    pub(crate) fn structural(rules: u16, now_ms: u64, wall_ms: u64, command: GroupCommand) -> Self {
        let head = put(Vec::with_capacity(MAX_HEADER_BYTES), &BlockHeader { rules, now_ms, wall_ms, kind: STRUCTURAL });
        Self { block: put(head, &command).into() }
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

    fn sections(&self, rest: &[u8]) -> Result<Vec<Bytes>, WireError> {
        let ((sections, shard, length), rest) = postcard::take_from_bytes::<(u32, u32, u32)>(rest)?;
        if (sections, shard) != (1, ONLY_SHARD) {
            return Err(WireError::Section { sections, shard });
        }
        if usize::try_from(length).ok() != Some(rest.len()) {
            return Err(WireError::Block("a section is cut short, or something follows it"));
        }
        let (count, mut rest) = postcard::take_from_bytes::<u32>(rest)?;
        // Each command takes at least one byte, for its length.
        let mut commands = Vec::with_capacity(rest.len().min(usize::try_from(count).unwrap_or(usize::MAX)));
        for _ in 0..count {
            let (command, after) = postcard::take_from_bytes::<&[u8]>(rest)?;
            commands.push(self.block.slice_ref(command));
            rest = after;
        }
        if rest.is_empty() { Ok(commands) } else { Err(WireError::Block("something follows the last command")) }
    }
}

fn put<T: Serialize>(bytes: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::to_extend(value, bytes).expect("numbers and commands of a group never fail to encode")
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

    fn data(lengths: &[usize]) -> EntryData {
        let commands: Vec<Bytes> = lengths.iter().map(|length| Bytes::from(vec![7; *length])).collect();
        EntryData::commands(2, 1_000, 1_700_000_000_000, &commands)
    }

    #[test]
    fn a_block_has_the_layout_that_every_release_reads() {
        let commands = [Bytes::from_static(b"ab"), Bytes::from_static(b"")];
        let block = EntryData::commands(1, 300, 5, &commands).block;
        // Rules 1, clock 300, wall clock 5, commands; one section, shard 0, 5 bytes, two commands.
        assert_eq!(block[..], [1, 0xac, 2, 5, 0, 1, 0, 5, 2, 2, b'a', b'b', 0]);
        let raised = EntryData::structural(1, 300, 5, GroupCommand::RaiseRules(200)).block;
        assert_eq!(raised[..], [1, 0xac, 2, 5, 1, 0, 0xc8, 1]);
    }

    #[test]
    fn a_block_reads_back_what_it_was_made_of() {
        for lengths in [&[][..], &[0], &[1, 127, 128, 20_000], &[70_000; 3], &[1; 512]] {
            let data = data(lengths);
            let block = data.read().unwrap();
            assert_eq!((block.rules, block.now_ms, block.wall_ms), (2, 1_000, 1_700_000_000_000));
            let Body::Commands(commands) = block.body else { panic!("commands were written") };
            assert_eq!(commands.iter().map(Bytes::len).collect::<Vec<_>>(), lengths);
            assert!(commands.iter().all(|command| command.iter().all(|byte| *byte == 7)));
        }
        let raise = GroupCommand::RaiseRules(3);
        assert_eq!(EntryData::structural(2, 1, 2, raise).read().unwrap().body, Body::Structural(raise));
    }

    #[test]
    fn a_block_that_is_cut_short_or_goes_on_is_refused() {
        for data in [data(&[3, 0, 200]), EntryData::structural(2, 1, 2, GroupCommand::RaiseRules(3))] {
            for length in 0..data.block.len() {
                let short = EntryData { block: data.block.slice(..length) };
                assert!(short.read().is_err(), "{length} of {} bytes were read", data.block.len());
            }
            let long = EntryData { block: [&data.block[..], &[0]].concat().into() };
            assert!(long.read().is_err());
        }
    }

    #[test]
    fn kinds_and_sections_of_later_releases_are_refused_by_name() {
        let refusal = |bytes: &[u8]| EntryData { block: Bytes::copy_from_slice(bytes) }.read().unwrap_err().to_string();
        assert!(refusal(&[1, 0, 0, 9, 0]).contains("kind 9"), "{}", refusal(&[1, 0, 0, 9, 0]));
        let of_shard_7 = [1, 0, 0, 0, 1, 7, 1, 0];
        assert!(refusal(&of_shard_7).contains("shard 7"), "{}", refusal(&of_shard_7));
    }
}
