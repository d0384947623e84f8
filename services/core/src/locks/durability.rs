//! Namespaces whose lock table is not in the log: what their log state refuses.

use super::namespace::Namespace;
use crate::{CommandError, Durability};

impl Namespace {
    /// Checks that the lock table is in the log, so that a command or query about it is for this state.
    ///
    /// # Errors
    /// `InvalidArgument` for the field `namespace`.
    pub(super) fn check_table(&self) -> Result<(), CommandError> {
        match self.durability {
            Durability::Full => Ok(()),
            Durability::Session => Err(CommandError::InvalidArgument(
                "namespace: its lock table is not in the log, and this is only for tables that are".to_owned(),
            )),
        }
    }
}
