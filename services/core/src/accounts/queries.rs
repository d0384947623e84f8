//! What can be asked of the accounts shard.

use std::ops::Bound;

use super::AccountsCore;
use crate::{AccountId, Answer, Query, Refusal, Revision, page};

impl AccountsCore {
    /// Nothing for queries of other applications.
    pub(crate) fn query(&self, query: &Query) -> Option<Result<Answer, Refusal>> {
        Some(match query {
            Query::Account { id } => self.account(*id).map(|account| Answer::Account(account.clone())),
            Query::Accounts { after, limit } => Ok(self.page_of_accounts(*after, *limit)),
            Query::ApiKey { key_id } => {
                let stored = self.keys.get(key_id).ok_or(Refusal::ApiKeyNotFound);
                stored.map(|stored| Answer::ApiKey(stored.key.clone()))
            }
            Query::ApiKeys { account } => self.api_keys(*account),
            Query::AccountChanges { after } => self.account_changes(*after),
            Query::KeyUse { account } => self.key_use(*account),
            _ => return None,
        })
    }

    fn page_of_accounts(&self, after: Option<AccountId>, limit: u32) -> Answer {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.accounts.range((start, Bound::Unbounded));
        let (accounts, more) = page::cut(rows, limit, |(_, account)| account.clone());
        Answer::Accounts { accounts, more }
    }

    fn api_keys(&self, account: AccountId) -> Result<Answer, Refusal> {
        self.account(account)?;
        let ids = self.keys_of.get(&account).into_iter().flat_map(|keys| keys.values());
        Ok(Answer::ApiKeys(ids.filter_map(|id| self.keys.get(id)).map(|stored| stored.key.clone()).collect()))
    }

    fn account_changes(&self, after: Revision) -> Result<Answer, Refusal> {
        let now = self.state.revision;
        Ok(Answer::AccountChanges { changes: self.changes.after(after, now)?, now })
    }
}
