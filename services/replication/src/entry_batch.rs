//! What goes into one entry: its limits, and how much of them is taken.

use holdfast_fair_queue::KeyMap;

use crate::proposal::Proposal;

/// Commands in one entry.
const MAX_BATCH_COMMANDS: usize = 2_048;
/// Commands of one shard in one entry.
pub(crate) const MAX_BATCH_COMMANDS_OF_SHARD: usize = 512;
/// Commands of one account for one shard in one entry: a section's cost is unknown before it is applied, and the next
/// one of its shard waits for it.
pub(crate) const MAX_BATCH_COMMANDS_OF_ACCOUNT: usize = 128;
/// Bytes in one entry, once it has one command of an account: at most twice as many with that.
const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// Expected units of an entry, once it has one command of an account: some milliseconds. The next command waits no
/// longer than that, whichever account filled the entry.
pub(crate) const MAX_BATCH_UNITS: u64 = 8_192;
/// Expected units of one shard in an entry, once it has one command of that shard.
const MAX_BATCH_UNITS_OF_SHARD: u64 = 4_096;

/// An entry under construction.
#[derive(Default)]
pub(crate) struct EntryBatch {
    /// Commands of the leader itself.
    own: Vec<Proposal>,
    /// Commands of both the leader itself and accounts.
    commands: usize,
    bytes: usize,
    units: u64,
    of_account: KeyMap<(u32, u64), usize>,
    of_shard: KeyMap<u32, ShardLoad>,
}

/// What an entry has for one shard.
#[derive(Default)]
struct ShardLoad {
    commands: usize,
    units: u64,
}

impl EntryBatch {
    /// Returns true if the half for the leader itself has capacity for one more command.
    pub(crate) fn fits_own(&self, next: &Proposal, units: u64) -> bool {
        self.commands == 0 || self.has_capacity(next, units, 2)
    }

    /// Returns true if the entry has capacity for one more command of an account. The first one always fits: it may be
    /// as large as an entry, and would never go beside a leader that has commands of its own for every entry.
    pub(crate) fn fits(&self, next: &Proposal, units: u64) -> bool {
        self.commands == self.own.len() || self.has_capacity(next, units, 1)
    }

    fn has_capacity(&self, next: &Proposal, units: u64, parts: usize) -> bool {
        self.commands < MAX_BATCH_COMMANDS / parts
            && self.bytes + next.bytes() <= MAX_BATCH_BYTES / parts
            && self.units + units <= MAX_BATCH_UNITS / parts as u64
    }

    /// Counts one more command of an account for a shard, unless either has reached its limit per entry.
    pub(crate) fn admits(&mut self, shard: u32, account: u64, units: u64) -> bool {
        let of_shard = self.of_shard.entry(shard).or_default();
        let of_account = self.of_account.entry((shard, account)).or_default();
        let fits_shard = of_shard.commands == 0 || of_shard.units + units <= MAX_BATCH_UNITS_OF_SHARD;
        if !fits_shard
            || of_shard.commands >= MAX_BATCH_COMMANDS_OF_SHARD
            || *of_account >= MAX_BATCH_COMMANDS_OF_ACCOUNT
        {
            return false;
        }
        *of_shard = ShardLoad { commands: of_shard.commands + 1, units: of_shard.units + units };
        *of_account += 1;
        true
    }

    /// Counts a command that goes into the entry.
    pub(crate) fn count(&mut self, next: &Proposal, units: u64) {
        self.commands += 1;
        self.bytes += next.bytes();
        self.units += units;
    }

    /// Returns the commands of the leader itself.
    pub(crate) fn into_own(self) -> Vec<Proposal> {
        self.own
    }

    /// Adds a command of the leader itself, unless its caller has cancelled it.
    pub(crate) fn add_own(&mut self, next: Option<Proposal>, units: u64) {
        let Some(next) = next.filter(|next| !next.state.is_cancelled()) else { return };
        self.count(&next, units);
        self.own.push(next);
    }
}
