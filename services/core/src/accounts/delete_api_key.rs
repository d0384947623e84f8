//! Deleting an API key.

use super::AccountsCore;
use crate::shard_common::CommandResult;
use crate::{AccountId, Answer, Refusal};

impl AccountsCore {
    /// Another account's key looks exactly like an unknown one.
    pub(super) fn delete_api_key(&mut self, account: AccountId, key_id: &str) -> CommandResult {
        if self.keys.get(key_id).is_none_or(|stored| stored.key.account != account) {
            return Err(Refusal::ApiKeyNotFound);
        }
        self.remove_key(key_id);
        Ok((Answer::Done, None))
    }
}
