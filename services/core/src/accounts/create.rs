//! Creating an account.

use super::AccountsCore;
use crate::shard_common::CommandResult;
use crate::{Account, AccountChange, AccountId, AccountStatus, Answer, Context, Limits, Refusal, RequestId};

/// What the creator says; the e-mail is normalized.
pub(super) struct NewAccount {
    pub(super) id: AccountId,
    pub(super) email: String,
    pub(super) full_name: String,
    pub(super) max_number_of_namespaces: u32,
    pub(super) limits: Limits,
}

impl AccountsCore {
    pub(super) fn create(&mut self, context: &Context, request_id: RequestId, new: NewAccount) -> CommandResult {
        if let Some(first) = self.remembered.get(&request_id) {
            let awaits = self.state.outbox.last_of(first.id);
            return Ok((Answer::Account(first.clone()), awaits));
        }
        if self.emails.contains_key(&new.email) {
            return Err(Refusal::EmailTaken(new.email));
        }
        if self.accounts.contains_key(&new.id) {
            return Err(Refusal::IdTaken);
        }
        self.state.outbox.check_room(self.state.bounds.pending_messages)?;
        let revision = self.changed(AccountChange::Account(new.id));
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
        self.remembered.remember(request_id, account.clone(), self.state.bounds.remembered_creations);
        let number = self.tell_open(&account);
        Ok((Answer::Account(account), Some(number)))
    }
}
