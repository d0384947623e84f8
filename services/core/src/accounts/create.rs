//! Creates an account.

use super::AccountsState;
use crate::shard_common::CommandResult;
use crate::{
    Account, AccountChange, AccountId, AccountStatus, CommandError, EntryContext, Limits, RequestId, Response,
};

/// The properties of the new account; the e-mail is normalized.
pub(super) struct NewAccount {
    pub(super) id: AccountId,
    pub(super) email: String,
    pub(super) full_name: String,
    pub(super) max_number_of_namespaces: u32,
    pub(super) limits: Limits,
}

impl AccountsState {
    pub(super) fn create(&mut self, context: &EntryContext, request_id: RequestId, new: NewAccount) -> CommandResult {
        if let Some(first) = self.creations.get(&request_id) {
            let awaits = self.common.outbox.last_of(first.id);
            return Ok((Response::Account(first.clone()), awaits));
        }
        if self.emails.contains_key(&new.email) {
            return Err(CommandError::EmailTaken(new.email));
        }
        if self.accounts.contains_key(&new.id) {
            return Err(CommandError::IdTaken);
        }
        let revision = self.record_change(AccountChange::Account(new.id));
        let account = Account {
            id: new.id,
            email: new.email,
            full_name: new.full_name,
            max_number_of_namespaces: new.max_number_of_namespaces,
            limits: new.limits,
            status: AccountStatus::Active,
            created_at_ms: context.wall_ms,
            updated_at_ms: context.wall_ms,
            revision,
        };
        self.emails.insert(account.email.clone(), account.id);
        self.accounts.insert(account.id, account.clone());
        self.creations.insert(account.id, request_id, account.clone(), self.common.cache_capacity());
        let number = self.enqueue_open(&account);
        Ok((Response::Account(account), Some(number)))
    }
}
