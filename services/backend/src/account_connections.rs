//! The open connections of each account to this gateway, through all its ports.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{AccountId, limit};
use parking_lot::Mutex;

/// Counts connections by account. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct AccountConnections {
    counts: Arc<Mutex<HashMap<AccountId, u64>>>,
}

impl AccountConnections {
    /// Counts one more connection of an account, which may have `max` of them.
    ///
    /// # Errors
    /// `RATE_LIMITED` if it has so many.
    pub fn add(&self, account: AccountId, max: u64) -> ApiResult<()> {
        let mut counts = self.counts.lock();
        let count = counts.get(&account).copied().unwrap_or_default();
        if count >= max {
            return Err(ApiError::limited(&limit::CONNECTIONS, max, "close some, or connect to another gateway"));
        }
        counts.insert(account, count + 1);
        Ok(())
    }

    /// Counts one less.
    pub fn remove(&self, account: AccountId) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&account) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&account);
            }
        }
    }

    /// Returns the connections of an account.
    pub fn used(&self, account: AccountId) -> u64 {
        self.counts.lock().get(&account).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_so_many_and_another_has_its_own() {
        let connections = AccountConnections::default();
        let [one, other] = [1, 2].map(AccountId);
        (0..3).for_each(|_| connections.add(one, 3).unwrap());
        let refused = connections.add(one, 3).unwrap_err();
        assert_eq!(refused.ids, [("limit", "max_connections".to_owned()), ("max", "3".to_owned())]);
        connections.add(other, 3).unwrap();
        assert_eq!([one, other].map(|account| connections.used(account)), [3, 1]);
        (0..3).for_each(|_| connections.remove(one));
        connections.remove(other);
        assert!(connections.counts.lock().is_empty(), "nothing is kept of accounts without connections");
    }
}
