//! Deletes a namespace with its locks.

use super::NamespacesState;
use crate::shard_common::CommandResult;
use crate::{AccountId, CommandError, Incarnation, Response};

impl NamespacesState {
    /// The name is free immediately: a new namespace with that name has another incarnation, and its open follows this
    /// purge.
    pub(super) fn delete(&mut self, account: AccountId, name: &str, incarnation: Option<Incarnation>) -> CommandResult {
        let namespace = self.namespace(account, name)?;
        if incarnation.is_some_and(|wanted| wanted != namespace.incarnation) {
            return Err(CommandError::NamespaceNotFound);
        }
        self.common.check_outbox(account)?;
        let record = self.accounts.get_mut(&account).ok_or(CommandError::NamespaceNotFound)?;
        let namespace = record.namespaces.remove(name).ok_or(CommandError::NamespaceNotFound)?;
        record.ended_keys.insert(account, name);
        let number = self.enqueue_purge(&namespace);
        Ok((Response::Done, Some(number)))
    }
}
