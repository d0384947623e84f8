//! Changes a namespace's description.

use super::{NamespacesState, check_description};
use crate::shard_common::CommandResult;
use crate::{AccountId, CommandError, EntryContext, Response};

impl NamespacesState {
    pub(super) fn update(
        &mut self,
        context: &EntryContext,
        account: AccountId,
        name: &str,
        description: Option<&str>,
    ) -> CommandResult {
        let record = self.accounts.get_mut(&account).ok_or(CommandError::NamespaceNotFound)?;
        let namespace = record.namespaces.get_mut(name).ok_or(CommandError::NamespaceNotFound)?;
        if let Some(description) = description.filter(|description| *description != namespace.description) {
            check_description(description, &record.limits)?;
            namespace.description = description.to_owned();
            namespace.updated_at_ms = context.wall_ms;
        }
        Ok((Response::of_namespace(namespace.clone()), None))
    }
}
