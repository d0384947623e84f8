//! Queries of the accounts shard.

use std::ops::Bound;

use holdfast_primitives::page;

use super::AccountsState;
use crate::{AccountId, CommandError, Limits, Query, Response, Revision};

impl AccountsState {
    /// Returns `None` for queries of other applications.
    pub(crate) fn query(&self, query: &Query) -> Option<Result<Response, CommandError>> {
        Some(match query {
            Query::Account { id } => self.account(*id).map(|account| Response::Account(account.clone())),
            Query::Accounts { after, limit } => Ok(self.page_of_accounts(*after, *limit)),
            Query::ApiKey { key_id } => {
                let stored = self.keys.get(key_id).ok_or(CommandError::ApiKeyNotFound);
                stored.map(|stored| Response::ApiKey(stored.key.clone()))
            }
            Query::ApiKeys { account } => self.api_keys(*account),
            Query::AccountChanges { after } => self.account_changes(*after),
            Query::KeyUse { account } => self.key_use(*account),
            _ => return None,
        })
    }

    pub(crate) fn limits_of(&self, account: AccountId) -> Option<&Limits> {
        self.accounts.get(&account).map(|account| &account.limits)
    }

    fn page_of_accounts(&self, after: Option<AccountId>, limit: u32) -> Response {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.accounts.range((start, Bound::Unbounded));
        let (accounts, more) = page::collect(rows, limit, |(_, account)| account.clone());
        Response::Accounts { accounts, more }
    }

    fn api_keys(&self, account: AccountId) -> Result<Response, CommandError> {
        self.account(account)?;
        let ids = self.keys_by_account.get(&account).into_iter().flat_map(|keys| keys.values());
        Ok(Response::ApiKeys(ids.filter_map(|id| self.keys.get(id)).map(|stored| stored.key.clone()).collect()))
    }

    fn account_changes(&self, after: Revision) -> Result<Response, CommandError> {
        let now = self.common.revision;
        Ok(Response::AccountChanges { changes: self.changes.after(after, now)?, now })
    }
}
