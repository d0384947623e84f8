//! Records when keys were last used, as gateways report periodically.

use super::AccountsState;
use crate::shard_common::CommandResult;
use crate::{AccountId, CommandError, Response};

impl AccountsState {
    /// Gateways do not cache this, so it is not a change that they follow.
    pub(super) fn record_key_use(&mut self, used: &[(String, u64)]) -> CommandResult {
        for (key_id, used_ms) in used {
            if let Some(stored) = self.keys.get_mut(key_id) {
                stored.last_used_ms = stored.last_used_ms.max(Some(*used_ms));
            }
        }
        Ok((Response::Done, None))
    }

    pub(super) fn key_use(&self, account: AccountId) -> Result<Response, CommandError> {
        self.account(account)?;
        let ids = self.keys_by_account.get(&account).into_iter().flat_map(|keys| keys.values());
        let used = ids.filter_map(|id| Some((id.clone(), self.keys.get(id)?.last_used_ms?)));
        let mut used: Vec<(String, u64)> = used.collect();
        used.sort();
        Ok(Response::KeyUse(used))
    }
}
