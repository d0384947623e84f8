//! Cached results of creations. A repeat of a creation returns the first result and does not recreate what was deleted
//! since.

use std::collections::BTreeMap;

use crate::AccountId;
use crate::recent_by_account::{Capacity, RecentByAccount};

/// The latest results by the id of their request. Errors are not cached: they changed nothing, so a repeat is evaluated
/// again. How many are kept is counted by account, so that no account makes repeats of others fail.
#[derive(Clone, Debug)]
pub(crate) struct IdempotencyCache<K, T> {
    recent: RecentByAccount<(K, T)>,
    numbers: BTreeMap<K, u64>,
}

impl<K, T> Default for IdempotencyCache<K, T> {
    fn default() -> Self {
        Self { recent: RecentByAccount::default(), numbers: BTreeMap::new() }
    }
}

impl<K: PartialEq, T: PartialEq> PartialEq for IdempotencyCache<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.recent == other.recent
    }
}

impl<K: Eq, T: Eq> Eq for IdempotencyCache<K, T> {}

impl<K: Ord + Clone, T> IdempotencyCache<K, T> {
    pub(crate) fn get(&self, id: &K) -> Option<&T> {
        self.recent.get(*self.numbers.get(id)?).map(|(_, result)| result)
    }

    /// Adds the result of an account's request. The first result of an id stays.
    pub(crate) fn insert(&mut self, account: AccountId, id: K, result: T, capacity: Capacity) {
        if self.numbers.contains_key(&id) {
            return;
        }
        let number = self.recent.last().map_or(0, |(last, _)| last + 1);
        self.numbers.insert(id.clone(), number);
        for (evicted, _) in self.recent.push(number, account, (id, result), capacity) {
            self.numbers.remove(&evicted);
        }
    }

    /// Iterates from the oldest to the newest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AccountId, &K, &T)> {
        self.recent.iter().map(|(account, (id, result))| (account, id, result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestId;

    fn id(number: usize) -> RequestId {
        RequestId((number as u128).to_be_bytes())
    }

    #[test]
    fn an_account_with_many_creations_forgets_its_own() {
        let mut cache = IdempotencyCache::default();
        let capacity = Capacity { per_account: 3, total: 4 };
        cache.insert(AccountId(1), id(100), 100, capacity);
        for number in 0..=10 {
            cache.insert(AccountId(2), id(number), number, capacity);
        }
        assert_eq!((cache.get(&id(100)), cache.get(&id(7)), cache.get(&id(8))), (Some(&100), None, Some(&8)));
        assert_eq!((cache.iter().count(), cache.numbers.len()), (4, 4));
        cache.insert(AccountId(2), id(10), 11, capacity);
        assert_eq!(cache.get(&id(10)), Some(&10), "the first result of an id stays");
    }
}
