//! Deleting a namespace with its locks.

use super::NamespacesCore;
use crate::shard_common::CommandResult;
use crate::{AccountId, Answer, Incarnation, Refusal};

impl NamespacesCore {
    /// The name is free at once: a namespace that takes it has another incarnation, and its open comes after this
    /// purge.
    pub(super) fn delete(&mut self, account: AccountId, name: &str, incarnation: Option<Incarnation>) -> CommandResult {
        let namespace = self.namespace(account, name)?;
        if incarnation.is_some_and(|wanted| wanted != namespace.incarnation) {
            return Err(Refusal::NamespaceNotFound);
        }
        self.state.outbox.check_room(self.state.bounds.pending_messages)?;
        let record = self.accounts.get_mut(&account).ok_or(Refusal::NamespaceNotFound)?;
        let namespace = record.namespaces.remove(name).ok_or(Refusal::NamespaceNotFound)?;
        let number = self.tell_purge(&namespace);
        Ok((Answer::Done, Some(number)))
    }
}
