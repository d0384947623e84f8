//! Deletes an API key.

use super::AccountsState;
use crate::shard_common::CommandResult;
use crate::{AccountId, CommandError, Response, Rules};

impl AccountsState {
    /// Another account's key is indistinguishable from an unknown one.
    pub(super) fn delete_api_key(&mut self, rules: Rules, account: AccountId, key_id: &str) -> CommandResult {
        if self.keys.get(key_id).is_none_or(|stored| stored.key.account != account) {
            return Err(CommandError::ApiKeyNotFound);
        }
        self.remove_key(rules, key_id);
        Ok((Response::Done, None))
    }
}
