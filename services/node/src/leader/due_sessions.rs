//! When the keep-alives of sessions are due, by account, so that accounts take turns when many are overdue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use holdfast_core::{AccountId, SessionNumber};

/// The sessions of a shard in order of their due time, which counts in a leader's running time.
#[derive(Default)]
pub(super) struct DueSessions {
    by_account: BTreeMap<AccountId, BTreeSet<(Duration, SessionNumber)>>,
    /// The first due time of each account.
    first: BTreeSet<(Duration, AccountId)>,
}

impl DueSessions {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Returns the earliest due time.
    pub(super) fn first(&self) -> Option<Duration> {
        self.first.first().map(|(due, _)| *due)
    }

    pub(super) fn insert(&mut self, account: AccountId, due: Duration, number: SessionNumber) {
        self.change(account, |sessions| {
            sessions.insert((due, number));
        });
    }

    pub(super) fn remove(&mut self, account: AccountId, due: Duration, number: SessionNumber) {
        self.change(account, |sessions| {
            sessions.remove(&(due, number));
        });
    }

    /// Moves a session to a later time.
    pub(super) fn postpone(&mut self, account: AccountId, due: Duration, later: Duration, number: SessionNumber) {
        self.change(account, |sessions| {
            sessions.remove(&(due, number));
            sessions.insert((later, number));
        });
    }

    /// Removes up to `at_most` sessions that are due, one of each account in turn, and returns their numbers. Accounts
    /// begin in order of their first due time.
    pub(super) fn take(&mut self, until: Duration, at_most: usize) -> Vec<SessionNumber> {
        let due = self.first.iter().take_while(|(due, _)| *due <= until).take(at_most);
        let mut accounts: VecDeque<AccountId> = due.map(|(_, account)| *account).collect();
        let mut taken = Vec::new();
        while taken.len() < at_most
            && let Some(account) = accounts.pop_front()
        {
            let mut next = None;
            self.change(account, |sessions| {
                taken.extend(sessions.pop_first().map(|(_, number)| number));
                next = sessions.first().copied();
            });
            if next.is_some_and(|(due, _)| due <= until) {
                accounts.push_back(account);
            }
        }
        taken
    }

    fn change(&mut self, account: AccountId, change: impl FnOnce(&mut BTreeSet<(Duration, SessionNumber)>)) {
        let sessions = self.by_account.entry(account).or_default();
        let before = sessions.first().map(|(due, _)| *due);
        change(sessions);
        let after = sessions.first().map(|(due, _)| *due);
        if after.is_none() {
            self.by_account.remove(&account);
        }
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.first.remove(&(before, account));
        }
        if let Some(after) = after {
            self.first.insert((after, account));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn accounts_take_turns_and_each_has_its_earliest_first() {
        let mut due = DueSessions::default();
        (0..100).for_each(|number| due.insert(AccountId(1), ms(100 - number), number));
        due.insert(AccountId(2), ms(90), 1_000);
        due.insert(AccountId(2), ms(99), 1_001);
        due.insert(AccountId(3), ms(101), 2_000);
        assert_eq!(due.take(ms(100), 5), [99, 1_000, 98, 1_001, 97]);
        assert_eq!(due.take(ms(100), 1_000).len(), 97, "all others of the first account");
        assert_eq!((due.take(ms(100), 10), due.first()), (vec![], Some(ms(101))));
    }

    #[test]
    fn the_first_time_follows_every_change() {
        let mut due = DueSessions::default();
        due.insert(AccountId(1), ms(10), 1);
        due.insert(AccountId(2), ms(5), 2);
        assert_eq!(due.first(), Some(ms(5)));
        due.postpone(AccountId(2), ms(5), ms(20), 2);
        assert_eq!(due.first(), Some(ms(10)));
        due.remove(AccountId(1), ms(10), 1);
        assert_eq!(due.first(), Some(ms(20)));
        due.remove(AccountId(2), ms(20), 2);
        assert!(due.is_empty() && due.by_account.is_empty(), "nothing is left of accounts without sessions");
    }
}
