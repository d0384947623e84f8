//! What a group applies its entries to.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a leader stamps on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// By which rules the entry is applied; they never go back.
    pub rules: u16,
    /// The shard clock, in milliseconds.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970; for display only.
    pub wall_ms: u64,
}

/// Whether somebody waits for the replies to an entry: on the leader that proposed it, and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// They are sent back.
    Encode,
    /// They need not be made.
    Skip,
}

/// At which step of an entry a machine failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApplyStep {
    /// Moving the clock, and ending what is due.
    Expiry,
    /// Carrying out the command of that place in the entry, counted from 0.
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

/// A machine could not go on in the middle of an entry: a panic, or a command that this release does not know. Its state
/// is of no use from then on. Stops the replica: nothing is ever skipped, since other replicas may have been able to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {message}")]
pub struct ApplyFailure {
    /// Where in the entry.
    pub step: ApplyStep,
    /// The namespace that the command is about; empty when it is about none, or not known.
    pub namespace: String,
    /// The command, for a person to read; empty when there is none.
    pub command: String,
    /// What happened.
    pub message: String,
    /// Where in the program; empty when not known.
    pub backtrace: String,
}

impl ApplyFailure {
    /// An entry can't be begun: its bytes can't be read, or it is of rules that this program does not know.
    pub fn invalid_entry(message: String) -> Self {
        let (namespace, command, backtrace) = Default::default();
        Self { step: ApplyStep::Expiry, namespace, command, message, backtrace }
    }
}

/// The state can't go on: a snapshot or an entry can't be read, or is of rules that this program does not know. Stops the
/// replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StateMachineError(pub String);

/// Whose a command is and what it costs at least, so that accounts share a shard fairly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandCost {
    /// The account; 0 for what a leader does by itself.
    pub account: u64,
    /// Units of work.
    pub units: u64,
}

/// How far an entry was applied.
pub enum Applied<'a> {
    /// To its end: one reply for each command, empty where nobody waits for it.
    Done(Vec<Bytes>),
    /// As far as one slice goes; others have their turn before the next.
    Part(Continuation<'a>),
}

/// What is left of an entry. Called once, it does the next slice.
pub type Continuation<'a> = Box<dyn FnOnce() -> Result<Applied<'a>, ApplyFailure> + Send + 'a>;

/// A state that was taken at one entry. Called once, it gives the whole of it in pieces of at most 1 MiB: equal bytes on
/// every replica at the same index.
pub type FrozenState = Box<dyn FnOnce() -> Vec<Bytes> + Send + Sync>;

/// A deterministic state machine in memory. Shared between the group, which applies, and the node, which asks.
pub trait StateMachine: Send + Sync + 'static {
    /// Begins to apply one entry: moves the clock to the stamp, ends what is due, then runs the commands in order. What
    /// takes long is done in slices, between which the machine may be asked: the commands before are done then, each as
    /// a whole. Nothing else is applied, frozen or restored before the last slice.
    ///
    /// # Errors
    /// When it can't be done as every other replica does it, above all when a command can't be read: whoever left that out
    /// would come to another state than the others. Nothing is asked of the machine then, and it answers nothing any more.
    fn apply<'a>(
        &'a self,
        stamp: EntryHeader,
        commands: &'a [Bytes],
        replies: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure>;

    /// Looks at a command before it is proposed to a group that goes by those rules: what is refused here is never
    /// written, so that nobody can make replicas stop at a command that they can't read.
    ///
    /// # Errors
    /// Why it can't be applied.
    fn assess(&self, rules: u16, command: &[u8]) -> Result<CommandCost, StateMachineError>;

    /// What a command of an account is expected to take, by what it takes at least, in units.
    fn price(&self, account: u64, min_units: u64) -> u64;

    /// From the next entry on those rules count.
    fn set_rules(&self, rules: u16);

    /// This replica leads in that term, from the last applied entry on; or, with none, no longer leads. Called before
    /// anybody can propose in the term, and after nobody can any more.
    fn on_leadership_change(&self, term: Option<u64>);

    /// The clock of the last applied entry, in milliseconds.
    fn clock_ms(&self) -> u64;

    /// Takes the state as it is now. Nothing is applied meanwhile, so this is quick; what takes long is left to the call
    /// of what it returns, which goes on beside the next entries.
    ///
    /// # Errors
    /// When the machine has failed: half a change is nothing to save.
    fn freeze(&self) -> Result<FrozenState, StateMachineError>;

    /// Replaces the whole state.
    ///
    /// # Errors
    /// When the pieces are not a snapshot of this machine; the state is then as before.
    fn restore(&self, chunks: &[Bytes]) -> Result<(), StateMachineError>;
}
