//! Changing a namespace's description.

use super::{NamespacesCore, check_description};
use crate::shard_common::CommandResult;
use crate::{AccountId, Answer, Context, Refusal};

impl NamespacesCore {
    pub(super) fn update(
        &mut self,
        context: &Context,
        account: AccountId,
        name: &str,
        description: Option<&str>,
    ) -> CommandResult {
        let record = self.accounts.get_mut(&account).ok_or(Refusal::NamespaceNotFound)?;
        let namespace = record.namespaces.get_mut(name).ok_or(Refusal::NamespaceNotFound)?;
        if let Some(description) = description.filter(|description| *description != namespace.description) {
            check_description(description, &record.limits)?;
            namespace.description = description.to_owned();
            namespace.updated_at_ms = context.wall_ms;
        }
        Ok((Answer::Namespace(namespace.clone()), None))
    }
}
