//! Creates a namespace.

use super::{NamespacesState, check_description};
use crate::shard_common::CommandResult;
use crate::{AccountId, CommandError, Durability, EntryContext, Incarnation, Namespace, RequestId, Response};

impl NamespacesState {
    pub(super) fn create(
        &mut self,
        context: &EntryContext,
        request_id: RequestId,
        account: AccountId,
        (name, description): (&str, &str),
        durability: Durability,
    ) -> CommandResult {
        if let Some(first) = self.creations.get(&(account, request_id)) {
            let answer = Response::of_namespace(first.clone());
            // The reply awaits all pending messages of the account, which include the open of this namespace.
            return Ok((answer, self.common.outbox.await_all_of(account)));
        }
        let record = self.accounts.get(&account).ok_or(CommandError::AccountNotFound(account))?;
        if record.namespaces.contains_key(name) {
            return Err(CommandError::NamespaceTaken(name.to_owned()));
        }
        let max = record.max_number_of_namespaces;
        if record.namespaces.len() as u64 >= u64::from(max) {
            return Err(CommandError::QuotaExceeded {
                what: "the number of namespaces of an account".into(),
                max: u64::from(max),
                hint: "delete one that is no longer used or have the limit raised".into(),
            });
        }
        check_description(description, &record.limits)?;
        self.common.check_outbox(account)?;
        let limits = record.limits.clone();
        let namespace = Namespace {
            incarnation: Incarnation(self.common.next_revision()),
            account,
            name: name.to_owned(),
            description: description.to_owned(),
            created_at_ms: context.wall_ms,
            updated_at_ms: context.wall_ms,
            durability,
        };
        let record = self.accounts.get_mut(&account).ok_or(CommandError::AccountNotFound(account))?;
        record.namespaces.insert(namespace.name.clone(), namespace.clone());
        self.creations.insert(account, (account, request_id), namespace.clone(), self.common.cache_capacity());
        let number = self.enqueue_open(&namespace, &limits);
        Ok((Response::of_namespace(namespace), Some(number)))
    }
}
