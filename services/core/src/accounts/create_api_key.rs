//! Creates an API key.

use super::{AccountsState, StoredKey, key_change};
use crate::shard_common::CommandResult;
use crate::{ApiKey, CommandError, EntryContext, Response};

impl AccountsState {
    pub(super) fn create_api_key(&mut self, context: &EntryContext, key: &ApiKey) -> CommandResult {
        self.account(key.account)?;
        if let Some(StoredKey { key: first, .. }) = self.keys.get(&key.key_id) {
            let is_repeat = first.account == key.account && first.secret_hash == key.secret_hash;
            return if is_repeat { Ok((Response::ApiKey(first.clone()), None)) } else { Err(CommandError::IdTaken) };
        }
        // A repeat that was sent before the key was deleted, or an idempotency key that names a deleted key.
        if self.deleted_keys.get(&key.key_id).is_some() {
            return Err(CommandError::ApiKeyNotFound);
        }
        let max = self.common.bounds.api_keys_per_account;
        if self.keys_by_account.get(&key.account).map_or(0, |keys| keys.len()) >= max {
            return Err(CommandError::QuotaExceeded {
                what: "the number of API keys of an account".into(),
                max: max as u64,
                hint: "delete keys that are no longer used".into(),
            });
        }
        let created = self.record_change(key_change(context.rules, key.account, &key.key_id));
        let key = ApiKey { created_at_ms: context.wall_ms, ..key.clone() };
        self.keys_by_account.entry(key.account).or_default().insert(created, key.key_id.clone());
        self.keys.insert(key.key_id.clone(), StoredKey { key: key.clone(), created, last_used_ms: None });
        Ok((Response::ApiKey(key), None))
    }
}
