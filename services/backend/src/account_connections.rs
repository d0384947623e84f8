//! The open connections of each account to this gateway, through all its ports.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult};
use holdfast_supervise::{SchedulingGroup, SharedGroup};
use holdfast_types::{AccountId, limit};
use parking_lot::Mutex;

/// Counts connections by account, and has the scheduling groups of their tasks. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct AccountConnections {
    accounts: Arc<Mutex<HashMap<AccountId, OfAccount>>>,
    strangers: Arc<SchedulingGroup>,
}

#[derive(Debug, Default)]
struct OfAccount {
    count: u64,
    group: Arc<SchedulingGroup>,
}

impl AccountConnections {
    /// Counts one more connection of an account, which may have `max` of them. Returns the group of its tasks.
    ///
    /// # Errors
    /// `RATE_LIMITED` if it has so many.
    pub fn add(&self, account: AccountId, max: u64) -> ApiResult<Arc<SchedulingGroup>> {
        let mut accounts = self.accounts.lock();
        let count = accounts.get(&account).map_or(0, |of_account| of_account.count);
        if count >= max {
            return Err(ApiError::limited(&limit::CONNECTIONS, max, "close some, or connect to another gateway"));
        }
        let of_account = accounts.entry(account).or_default();
        of_account.count += 1;
        Ok(Arc::clone(&of_account.group))
    }

    /// Counts one less.
    pub fn remove(&self, account: AccountId) {
        let mut accounts = self.accounts.lock();
        if let Some(of_account) = accounts.get_mut(&account) {
            of_account.count -= 1;
            if of_account.count == 0 {
                accounts.remove(&account);
            }
        }
    }

    /// Returns the connections of an account.
    pub fn used(&self, account: AccountId) -> u64 {
        self.accounts.lock().get(&account).map_or(0, |of_account| of_account.count)
    }

    /// Returns the group of a new connection, of which no account is known.
    pub fn group_of_strangers(&self) -> SharedGroup {
        Arc::clone(&self.strangers).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_so_many_and_another_has_its_own() {
        let connections = AccountConnections::default();
        let [one, other] = [1, 2].map(AccountId);
        (0..3).for_each(|_| drop(connections.add(one, 3).unwrap()));
        let refused = connections.add(one, 3).unwrap_err();
        assert_eq!(refused.ids, [("limit", "max_connections".to_owned()), ("max", "3".to_owned())]);
        connections.add(other, 3).unwrap();
        assert_eq!([one, other].map(|account| connections.used(account)), [3, 1]);
        (0..3).for_each(|_| connections.remove(one));
        connections.remove(other);
        assert!(connections.accounts.lock().is_empty(), "nothing is kept of accounts without connections");
    }
}
