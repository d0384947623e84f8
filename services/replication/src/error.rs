//! Errors, by boundary.

use std::io;

use holdfast_storage::StorageError;

/// This replica can't answer; names the leader that it knows, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("replica is not the leader (leader {leader:?}, term {term})")]
pub struct NotLeader {
    /// The leader's replica id.
    pub leader: Option<u64>,
    /// Its term; 0 when there is no leader.
    pub term: u64,
}

/// A command got no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The command was not proposed: this replica does not lead in the command's term.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The command was not proposed, for this reason.
    #[error("not proposed: {0}")]
    NotProposed(&'static str),
    /// The command was not proposed: too much waits already.
    #[error("not proposed: {0}")]
    Limited(QueueLimit),
    /// The command was not proposed: some replica could not apply it.
    #[error("not proposed: {0}")]
    UnsupportedCommand(String),
    /// The outcome is unknown: the command may have been applied, or may still be.
    #[error("proposed, outcome unknown: {0}")]
    Unknown(&'static str),
}

/// A limit of the commands that wait for the log of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is limited to {max}; try again later")]
pub struct QueueLimit {
    /// What is limited.
    pub what: &'static str,
    /// How many commands there may be, or what counts as so many.
    pub max: usize,
}

/// A group can't be started or has stopped for good.
#[derive(Debug, thiserror::Error)]
pub enum ReplicationError {
    /// A storage error.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// openraft failed or has stopped.
    #[error("replica {replica} of group {group} has stopped: {reason}")]
    Stopped {
        /// The group.
        group: String,
        /// The replica.
        replica: u64,
        /// openraft's reason.
        reason: String,
    },
}

/// Undecodable bytes from disk or wire.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("no bytes")]
    Empty,
    #[error("written in format {0}, which this version does not read")]
    Format(u8),
    #[error("an entry of kind {0}, which this release does not know; it needs a later one")]
    Kind(u8),
    #[error("damaged: {0}")]
    Block(&'static str),
    #[error("damaged: {0}")]
    Damaged(#[from] postcard::Error),
}

impl From<WireError> for io::Error {
    fn from(error: WireError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Converts a storage error; openraft expects `io::Error` from stores.
pub(crate) fn to_io(error: StorageError) -> io::Error {
    io::Error::other(error)
}
