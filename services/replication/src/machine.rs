//! What a group applies its entries to.

use bytes::Bytes;

/// What a leader stamps on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The shard clock, in milliseconds.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970; for display only.
    pub wall_ms: u64,
}

/// Whether somebody waits for the replies to an entry: on the leader that proposed it, and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    /// They are sent back.
    Wanted,
    /// They need not be made.
    Unwanted,
}

/// The state can't go on: a snapshot can't be read. Stops the replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MachineError(pub String);

/// A state that was taken at one entry. Called once, it gives the whole of it in pieces of at most 1 MiB: equal bytes on
/// every replica at the same index.
pub type Frozen = Box<dyn FnOnce() -> Vec<Bytes> + Send + Sync>;

/// A deterministic state machine in memory. Shared between the group, which applies, and the node, which asks.
pub trait Machine: Send + Sync + 'static {
    /// Applies one entry: moves the clock to the stamp, ends what is due, then runs the commands in order. One reply
    /// for each command, unless nobody waits for them. A command that can't be read is a refusal in its reply, the same
    /// on every replica.
    fn apply(&self, stamp: Stamp, commands: &[Bytes], replies: Replies) -> Vec<Bytes>;

    /// This replica leads in that term, from the last applied entry on; or, with none, no longer leads. Called before
    /// anybody can propose in the term, and after nobody can any more.
    fn lead(&self, term: Option<u64>);

    /// The clock of the last applied entry, in milliseconds.
    fn clock_ms(&self) -> u64;

    /// Takes the state as it is now. Nothing is applied meanwhile, so this is quick; what takes long is left to the call
    /// of what it returns, which goes on beside the next entries.
    fn freeze(&self) -> Frozen;

    /// Replaces the whole state.
    ///
    /// # Errors
    /// When the pieces are not a snapshot of this machine; the state is then as before.
    fn restore(&self, chunks: &[Bytes]) -> Result<(), MachineError>;
}
