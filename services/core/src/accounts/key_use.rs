//! When keys were last used, as gateways tell from time to time.

use super::AccountsCore;
use crate::shard_common::CommandResult;
use crate::{AccountId, Answer, Refusal};

impl AccountsCore {
    /// Nobody keeps this in memory, so that it is no change that gateways follow.
    pub(super) fn note_key_use(&mut self, used: &[(String, u64)]) -> CommandResult {
        for (key_id, used_ms) in used {
            if let Some(stored) = self.keys.get_mut(key_id) {
                stored.last_used_ms = stored.last_used_ms.max(Some(*used_ms));
            }
        }
        Ok((Answer::Done, None))
    }

    pub(super) fn key_use(&self, account: AccountId) -> Result<Answer, Refusal> {
        self.account(account)?;
        let ids = self.keys_of.get(&account).into_iter().flat_map(|keys| keys.values());
        let used = ids.filter_map(|id| Some((id.clone(), self.keys.get(id)?.last_used_ms?)));
        let mut used: Vec<(String, u64)> = used.collect();
        used.sort();
        Ok(Answer::KeyUse(used))
    }
}
