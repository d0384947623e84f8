//! Namespaces whose lock table is not in the log: what their log state refuses, and by which field it says so.

use super::namespace::Namespace;
use crate::{AskRelease, CommandError, Durability, Kind, Owner};

/// What such a namespace does not have, or not by the log: the field that asks for it, and the reason.
pub(super) mod absent {
    /// A call for the leader's table that came to the log instead.
    pub(in crate::locks) const ELSEWHERE: &str = "namespace: its lock table is in the memory of its shard's leader";
    /// Owners without a session.
    pub(in crate::locks) const PROCESS: &str = "process_id: has no holds in a namespace whose durability is SESSION, since only sessions keep a table of theirs";
    /// A session's holds by calls that are not of its connection.
    pub(in crate::locks) const SINGLE_CALL: &str =
        "session_id: acquires and releases on its connection only, since the durability of the namespace is SESSION";
    /// Sessions whose client keeps no table.
    pub(in crate::locks) const NO_TABLE: &str =
        "keeps_table: must be true, on a connection, since the durability of the namespace is SESSION";
    /// A lock that is forced open by the log, which does not have its holds.
    pub(in crate::locks) const FORCED_END: &str = "path: its lock is in the memory of its shard's leader";
    /// A hold that ends by force some time after its owner was asked for it.
    pub(in crate::locks) const FORCED_ASK: &str =
        "force: must be false in a namespace whose durability is SESSION; delete the lock to end its holds";
    /// Semaphores and pools.
    pub(in crate::locks) const PERMITS: &str =
        "namespace: has no semaphores and no pools, since its durability is SESSION";
    /// Barriers.
    pub(in crate::locks) const BARRIERS: &str = "namespace: has no barriers, since its durability is SESSION";
    /// Conditions of locks.
    pub(in crate::locks) const CONDITIONS: &str =
        "condition: locks have none in a namespace whose durability is SESSION";
}

/// Returns why the log does nothing for an owner of locks.
pub(super) fn refusal_of(owner: &Owner) -> &'static str {
    match owner {
        Owner::Process(_) => absent::PROCESS,
        Owner::Session { .. } => absent::SINGLE_CALL,
    }
}

/// Returns why the log does not ask for the release of locks.
pub(super) fn refusal_of_ask(ask: &AskRelease) -> &'static str {
    match (ask.kind, ask.force) {
        (Kind::Lock, true) => absent::FORCED_ASK,
        (Kind::Lock, false) => absent::ELSEWHERE,
        _ => absent::PERMITS,
    }
}

impl Namespace {
    /// Checks that the lock table is in the log, so that a command or query about it is for this state.
    ///
    /// # Errors
    /// `InvalidArgument` with this text, which begins with the field.
    pub(super) fn check_table(&self, refused: &'static str) -> Result<(), CommandError> {
        match self.durability {
            Durability::Full => Ok(()),
            Durability::Session => Err(CommandError::InvalidArgument(refused.to_owned())),
        }
    }
}
