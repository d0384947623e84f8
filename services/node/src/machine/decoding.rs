//! Decodes the commands of a section. They may have more than a mebibyte, which takes longer than an apply slice: other
//! tasks run in between.

use bytes::Bytes;
use holdfast_core::{Command, Rules};
use holdfast_replication::{Applied, ApplyFailure, EntryHeader};

use super::exceptions::SectionExceptions;
use super::slices::Entry;
use super::{ShardMachine, decode};
use crate::failure;

/// Bytes of commands that are decoded before other tasks run: some hundred microseconds.
const MAX_STEP_BYTES: usize = 256 << 10;

/// A section of which some commands are decoded. All are before the first is applied, so that a shard that fails at one
/// that it can't decode is unchanged by the entry.
pub(super) struct UndecodedSection<'a> {
    header: EntryHeader,
    commands: &'a [Bytes],
    encode_replies: bool,
    exceptions: SectionExceptions,
    decoded: Vec<Command>,
}

impl<'a> UndecodedSection<'a> {
    pub(super) fn new(
        header: EntryHeader,
        commands: &'a [Bytes],
        encode_replies: bool,
        exceptions: SectionExceptions,
    ) -> Self {
        Self { header, commands, encode_replies, exceptions, decoded: Vec::with_capacity(commands.len()) }
    }

    /// Decodes the next commands, of so many bytes and at least one. Returns whether these were the last.
    fn decode_some(&mut self, max_bytes: usize) -> Result<bool, ApplyFailure> {
        let mut bytes = 0;
        while let Some(next) = self.commands.get(self.decoded.len()) {
            if bytes >= max_bytes {
                return Ok(false);
            }
            bytes += next.len();
            let number = u32::try_from(self.decoded.len()).unwrap_or(u32::MAX);
            self.decoded.push(match self.exceptions.replacement(number) {
                Some(command) => command,
                None => decode(Rules(self.header.rules), next)
                    .map_err(|error| failure::from_undecodable(number, next, error))?,
            });
        }
        Ok(true)
    }

    /// Decodes all commands.
    ///
    /// # Errors
    /// When one can't be decoded.
    pub(super) fn decode_all(mut self) -> Result<Entry<'a>, ApplyFailure> {
        self.decode_some(usize::MAX)?;
        Ok(self.into_entry())
    }

    fn into_entry(self) -> Entry<'a> {
        Entry::new(self.header, self.commands, self.decoded, self.encode_replies).without(self.exceptions)
    }
}

impl ShardMachine {
    /// Decodes the next commands of a section; after the last one, applies the first slice.
    pub(super) fn decode_next<'a>(&'a self, mut section: UndecodedSection<'a>) -> Result<Applied<'a>, ApplyFailure> {
        if section.decode_some(MAX_STEP_BYTES)? {
            return self.apply_next_slice(section.into_entry());
        }
        Ok(Applied::Part(Box::new(move || self.decode_next(section))))
    }
}
