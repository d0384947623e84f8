//! The state machine that a group applies its entries to.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use holdfast_storage::{PartUpdate, SnapshotPart};
use serde::{Deserialize, Serialize};

use crate::exceptions::Exception;

/// Where an entry is in the log, and the leader's header of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryHeader {
    /// The term of the entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The rules by which the entry is applied; they never decrease.
    pub rules: u16,
    /// The group's clock, in milliseconds.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970; for display only.
    pub wall_ms: u64,
}

/// Whether a caller waits for the replies to an entry: only on the leader that proposed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are encoded and sent.
    Encode,
    /// Replies are not needed.
    Skip,
}

/// The step of an entry at which a machine failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyStep {
    /// Advancing the clock and ending what is due.
    Expiry,
    /// Applying the command at this position in the entry, counted from 0.
    Command(u32),
}

impl fmt::Display for ApplyStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expiry => write!(f, "what is due"),
            Self::Command(number) => write!(f, "command {number}"),
        }
    }
}

/// A machine failed in the middle of an entry: a panic, or a command that this release does not know. Its state is
/// unusable from then on. The failure stops the replica: no entry is ever skipped, since other replicas may have
/// applied it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {message}")]
pub struct ApplyFailure {
    /// The step in the entry.
    pub step: ApplyStep,
    /// The namespace of the command; empty if it has none, or if it is unknown.
    pub namespace: String,
    /// The command as text; empty if there is none.
    pub command: String,
    /// The error message.
    pub message: String,
    /// The backtrace; empty if unknown.
    pub backtrace: String,
}

impl ApplyFailure {
    /// An entry can't be applied: its bytes can't be decoded, or this program does not know its rules.
    pub fn invalid_entry(message: String) -> Self {
        let (namespace, command, backtrace) = Default::default();
        Self { step: ApplyStep::Expiry, namespace, command, message, backtrace }
    }
}

/// The entry at which a machine failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedEntry {
    /// The term of the entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The failure.
    pub failure: ApplyFailure,
}

/// Shards of a group that do not serve on a replica, by number, each with the index of the entry that it failed at.
pub type FailedShards = BTreeMap<u32, u64>;

/// The state machine can't continue: a snapshot or an entry can't be decoded, or this program does not know its rules.
/// Stops the replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StateMachineError(pub String);

/// A command's account, kind and minimum cost, so that accounts share a shard fairly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandCost {
    /// The account; none for the leader's own commands.
    pub account: Option<u64>,
    /// A number for commands that the machine prices alike.
    pub kind: u8,
    /// Units of work.
    pub units: u64,
}

/// How far an entry is applied.
pub enum Applied<'a> {
    /// Completely: one reply per command, empty where no caller waits for it.
    Done(Vec<Bytes>),
    /// Up to the end of a slice; other tasks run before the next.
    Part(Continuation<'a>),
}

/// The rest of an entry. Calling it applies the next slice.
pub type Continuation<'a> = Box<dyn FnOnce() -> Result<Applied<'a>, ApplyFailure> + Send + 'a>;

/// The states of all shards, frozen at one entry, as the named parts of a snapshot. Chunks of at most 1 MiB are encoded
/// when they are taken: equal bytes on every replica at the same index.
pub type FrozenState = Vec<PartUpdate>;

/// The deterministic in-memory states of a group's shards. Shared between the group, which applies entries, and the
/// node, which queries it. The state of a shard is a function of the sections for that shard alone.
pub trait StateMachine: Send + Sync + 'static {
    /// Starts to apply the section of an entry for one shard: advances the shard's clock to the entry's time, ends what
    /// is due, then runs the commands in order. Long work is split into slices, between which the machine may be
    /// queried; all commands before that point are then done, each as a whole. Before the last slice, there is no other
    /// apply for the same shard, and no freeze or restore. Sections for other shards are applied meanwhile, also on
    /// another thread.
    ///
    /// # Errors
    /// When the machine can't apply it as every other replica does, above all when a command can't be decoded: skipping
    /// it would make the state diverge. The shard is not queried after that and answers nothing.
    fn apply<'a>(
        &'a self,
        header: EntryHeader,
        shard: u32,
        commands: &'a [Bytes],
        replies: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure>;

    /// Called after an apply failed, and after more was left out of the history of the shard. Returns true if that
    /// concerns this shard alone: the machine then keeps the shard out of service until its state is built again, and the
    /// group goes on with the others. Otherwise the replica of the group stops.
    fn isolate(&self, _shard: u32, _failed_entry: &FailedEntry) -> bool {
        false
    }

    /// Returns the shards that do not serve on this replica: they failed at an entry, or are being built again.
    fn failed_shards(&self) -> FailedShards {
        FailedShards::new()
    }

    /// Sets what is left out of the histories of shards, all of it. Called before a state is restored, and when more was
    /// decided: then also [`Self::isolate`], since the state of that shard is to be built again.
    ///
    /// # Errors
    /// When this program does not know how to leave that out.
    fn set_exceptions(&self, _exceptions: &[Exception]) -> Result<(), StateMachineError> {
        Ok(())
    }

    /// The group has logged a checkpoint of a shard in the entry of this index. A shard with a state freezes it, for
    /// [`Self::checkpoint_digest`] and [`Self::checkpoint_state`]. A shard that has failed may be built again from that
    /// of another replica: of `from` alone, if an operator has named it.
    fn checkpoint(&self, _shard: u32, _index: u64, _from: Option<u64>) {}

    /// Returns the digest of the state that a shard had at the checkpoint of this index; `None` before it is computed,
    /// if the shard had no state there, and once another checkpoint of the shard followed.
    fn checkpoint_digest(&self, _shard: u32, _index: u64) -> Option<Bytes> {
        None
    }

    /// Returns that state itself, in chunks of at most 1 MiB, none of them empty. It is kept for a while only.
    fn checkpoint_state(&self, _shard: u32, _index: u64) -> Option<SnapshotPart> {
        None
    }

    /// Checks a command before it is proposed to a group with these rules. A command rejected here is never written, so
    /// no client can make replicas stop at a command that they can't decode.
    ///
    /// # Errors
    /// Why the command can't be applied.
    fn assess(&self, rules: u16, shard: u32, command: &[u8]) -> Result<CommandCost, StateMachineError>;

    /// Returns the expected cost of an account's command for a shard in units, given its kind and its minimum cost.
    fn price(&self, shard: u32, account: u64, kind: u8, min_units: u64) -> u64;

    /// Sets the rules from the next entry on.
    fn set_rules(&self, rules: u16);

    /// Does a step of the work for a leadership that is to begin in this term, so that its begin is short. Returns false
    /// if there is more to do before it. The leadership may never begin.
    fn prepare_leadership(&self, _term: u64) -> bool {
        true
    }

    /// Notifies the machine that this replica leads in this term, from the last applied entry on, or no longer leads
    /// (`None`). Called before any caller can propose in the term, and after none can any more.
    fn on_leadership_change(&self, term: Option<u64>);

    /// Returns the clock of the last applied entry, in milliseconds.
    fn clock_ms(&self) -> u64;

    /// Returns true if every shard has a state to freeze. While one has not, no snapshot is made and the log is kept.
    fn can_freeze(&self) -> bool {
        true
    }

    /// Freezes the current state. Nothing is applied meanwhile, so this is quick; the chunks of the returned parts are
    /// encoded later, concurrently with the next entries. `is_saved` returns true for the number of a shard if the saved
    /// snapshot has all its sections: the machine may then retain the shard's part, unless a new one would differ.
    ///
    /// # Errors
    /// When a shard has failed: a partly changed state must not be saved.
    fn freeze(&self, is_saved: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError>;

    /// Replaces the whole state by that of a snapshot up to the entry of this index. Takes the chunks of its parts one
    /// after the other, and may take them again as long as it keeps a part.
    ///
    /// # Errors
    /// When the parts are not a snapshot of this machine; the state is then unchanged.
    fn restore(&self, index: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError>;
}
