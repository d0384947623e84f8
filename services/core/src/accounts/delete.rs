//! Deletes an account with its keys, its namespaces and their locks.

use super::AccountsState;
use crate::shard_common::CommandResult;
use crate::{AccountChange, AccountId, AccountMessage, CommandError, Response, Rules};

impl AccountsState {
    pub(super) fn delete(&mut self, rules: Rules, id: AccountId) -> CommandResult {
        self.account(id)?;
        self.common.check_outbox(id)?;
        let account = self.accounts.remove(&id).ok_or(CommandError::AccountNotFound(id))?;
        let indexed = self.emails.remove(&account.email);
        assert_eq!(indexed, Some(id), "every account has its e-mail in the index");
        let keys: Vec<String> =
            self.keys_by_account.get(&id).map(|keys| keys.values().cloned().collect()).unwrap_or_default();
        for key_id in keys {
            self.remove_key(rules, &key_id);
        }
        self.record_change(AccountChange::Account(id));
        // Its creation stays cached: a delayed repeat must not recreate the account.
        let number = self.enqueue(id, AccountMessage::Purge { account: id });
        Ok((Response::Done, Some(number)))
    }
}
