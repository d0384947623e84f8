//! The latest items of each account, within a maximum for one account and one for all of them.
//!
//! When the maximum for all is exceeded, the account with the most items loses its oldest one. So an account that adds
//! many items shortens its own history first, and other histories only to an equal length.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::AccountId;

/// How many items are kept.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Of one account.
    pub per_account: usize,
    /// Of all accounts together.
    pub total: usize,
}

/// Items in order of arrival. Their numbers rise, and are not compared: a restored replica may count from elsewhere.
#[derive(Clone, Debug)]
pub struct RecentByAccount<T> {
    items: BTreeMap<u64, (AccountId, T)>,
    /// The numbers of each account's items, oldest first. No account is without items.
    by_account: BTreeMap<AccountId, VecDeque<u64>>,
    /// How many items each account has, and the number of its oldest one. Of accounts with equally many, the last is
    /// that with the oldest item.
    by_count: BTreeSet<(usize, Reverse<u64>)>,
}

impl<T> Default for RecentByAccount<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), by_account: BTreeMap::new(), by_count: BTreeSet::new() }
    }
}

impl<T: PartialEq> PartialEq for RecentByAccount<T> {
    fn eq(&self, other: &Self) -> bool {
        self.items.values().eq(other.items.values())
    }
}

impl<T: Eq> Eq for RecentByAccount<T> {}

impl<T> RecentByAccount<T> {
    /// Adds an item under a number above all others. Returns the items that give way, oldest first of each account.
    pub fn push(&mut self, number: u64, account: AccountId, item: T, capacity: Capacity) -> Vec<T> {
        self.items.insert(number, (account, item));
        self.update(account, |numbers| numbers.push_back(number));
        let mut evicted = Vec::new();
        while self.by_account.get(&account).is_some_and(|numbers| numbers.len() > capacity.per_account) {
            evicted.extend(self.pop_oldest(account));
        }
        while self.items.len() > capacity.total
            && let Some(largest) = self.largest_account()
        {
            evicted.extend(self.pop_oldest(largest));
        }
        evicted
    }

    /// Returns the newest item and its number.
    pub(crate) fn last(&self) -> Option<(u64, &T)> {
        self.items.last_key_value().map(|(number, (_, item))| (*number, item))
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.items.get(&number).map(|(_, item)| item)
    }

    /// Iterates over all items with their accounts, from the oldest to the newest.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (AccountId, &T)> {
        self.items.values().map(|(account, item)| (*account, item))
    }

    /// Iterates over the items of one account, from the oldest to the newest.
    pub fn of_account(&self, account: AccountId) -> impl DoubleEndedIterator<Item = &T> {
        let numbers = self.by_account.get(&account).into_iter().flatten();
        numbers.filter_map(|number| self.get(*number))
    }

    fn largest_account(&self) -> Option<AccountId> {
        let (_, Reverse(oldest)) = self.by_count.last()?;
        self.items.get(oldest).map(|(account, _)| *account)
    }

    fn pop_oldest(&mut self, account: AccountId) -> Option<T> {
        let mut oldest = None;
        self.update(account, |numbers| oldest = numbers.pop_front());
        self.items.remove(&oldest?).map(|(_, item)| item)
    }

    /// Changes the numbers of an account, and its place among the others.
    fn update(&mut self, account: AccountId, change: impl FnOnce(&mut VecDeque<u64>)) {
        let numbers = self.by_account.entry(account).or_default();
        if let Some(oldest) = numbers.front() {
            self.by_count.remove(&(numbers.len(), Reverse(*oldest)));
        }
        change(numbers);
        match numbers.front() {
            Some(oldest) => {
                self.by_count.insert((numbers.len(), Reverse(*oldest)));
            }
            None => {
                self.by_account.remove(&account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity { per_account: 3, total: 5 };

    fn pushed(accounts: &[u64]) -> RecentByAccount<usize> {
        let mut recent = RecentByAccount::default();
        for (index, account) in accounts.iter().enumerate() {
            recent.push(index as u64, AccountId(*account), index, CAPACITY);
        }
        recent
    }

    fn items(recent: &RecentByAccount<usize>) -> Vec<usize> {
        recent.iter().map(|(_, item)| *item).collect()
    }

    #[test]
    fn the_oldest_item_of_an_account_with_too_many_goes() {
        let recent = pushed(&[1, 2, 1, 1, 1]);
        assert_eq!(items(&recent), [1, 2, 3, 4]);
        assert_eq!(recent.of_account(AccountId(1)).copied().collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(recent.of_account(AccountId(3)).count(), 0);
    }

    #[test]
    fn of_too_many_in_all_the_account_with_the_most_loses_its_oldest() {
        let mut recent = pushed(&[1, 2, 2, 2, 1]);
        assert_eq!(recent.push(5, AccountId(3), 5, CAPACITY), [1], "not the oldest of all");
        assert_eq!(recent.push(6, AccountId(4), 6, CAPACITY), [0], "of two with as many, the one with the oldest");
        assert_eq!(recent.push(7, AccountId(4), 7, CAPACITY), [2]);
        assert_eq!(items(&recent), [3, 4, 5, 6, 7]);
        assert_eq!(recent.last(), Some((7, &7)));
    }

    #[test]
    fn a_crowd_of_accounts_with_one_item_each_takes_no_more_than_the_total() {
        let recent = pushed(&[1, 1, 1, 10, 11, 12, 13, 14, 15]);
        assert_eq!(items(&recent), [4, 5, 6, 7, 8], "the oldest of all, once all have one");
        assert_eq!((recent.by_account.len(), recent.by_count.len()), (5, 5));
    }

    #[test]
    fn numbers_do_not_make_a_difference() {
        let (mut one, mut other) = (RecentByAccount::default(), RecentByAccount::default());
        for number in 0..4 {
            one.push(number, AccountId(1), number, CAPACITY);
            other.push(number * 10 + 7, AccountId(1), number, CAPACITY);
        }
        assert_eq!(one, other);
        other.push(99, AccountId(1), 9, CAPACITY);
        assert_ne!(one, other);
    }
}
