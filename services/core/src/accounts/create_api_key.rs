//! Creating an API key.

use super::{AccountsCore, StoredKey};
use crate::shard_common::CommandResult;
use crate::{AccountChange, Answer, ApiKey, Context, Refusal};

impl AccountsCore {
    pub(super) fn create_api_key(&mut self, context: &Context, key: &ApiKey) -> CommandResult {
        self.account(key.account)?;
        if let Some(StoredKey { key: first, .. }) = self.keys.get(&key.key_id) {
            let is_repeat = first.account == key.account && first.secret_hash == key.secret_hash;
            return if is_repeat { Ok((Answer::ApiKey(first.clone()), None)) } else { Err(Refusal::IdTaken) };
        }
        // A repeat, on its way since before the key was deleted, or of an idempotency key that names a deleted key.
        if self.deleted_keys.get(&key.key_id).is_some() {
            return Err(Refusal::ApiKeyNotFound);
        }
        let max = self.state.bounds.api_keys_per_account;
        if self.keys_of.get(&key.account).map_or(0, |keys| keys.len()) >= max {
            return Err(Refusal::QuotaExceeded {
                what: "the number of API keys of an account".into(),
                max: max as u64,
                hint: "delete keys that are no longer used".into(),
            });
        }
        let created = self.changed(AccountChange::ApiKey(key.key_id.clone()));
        let key = ApiKey { created_at_ms: context.wall_ms, ..key.clone() };
        self.keys_of.entry(key.account).or_default().insert(created, key.key_id.clone());
        self.keys.insert(key.key_id.clone(), StoredKey { key: key.clone(), created, last_used_ms: None });
        Ok((Answer::ApiKey(key), None))
    }
}
