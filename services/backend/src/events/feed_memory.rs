//! The memory that the events of all feeds take, and which accounts have to leave some of it to the others.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_types::AccountId;
use parking_lot::Mutex;

/// Approximate bytes of all events, beyond which each account keeps an equal share of them, besides latest pages.
const MAX_SHARED_BYTES: usize = 16 << 20;
/// Approximate bytes of all events, beyond which only the latest pages remain, for every account. Only many accounts at
/// once reach it, because each is within its share at its next event.
const MAX_TOTAL_BYTES: usize = 32 << 20;

/// Counts the bytes of all feeds. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct FeedMemory(Arc<Mutex<Usage>>);

#[derive(Default)]
struct Usage {
    total: usize,
    /// Bytes of each account that has events.
    accounts: HashMap<AccountId, usize>,
}

impl FeedMemory {
    /// Counts the bytes added to an account's feed and the bytes removed from it.
    pub(super) fn resize(&self, account: AccountId, added: usize, removed: usize) {
        let mut usage = self.0.lock();
        usage.total = usage.total + added - removed;
        let of_account = usage.accounts.entry(account).or_default();
        *of_account = *of_account + added - removed;
        if *of_account == 0 {
            usage.accounts.remove(&account);
        }
    }

    /// Returns the bytes of all feeds.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        self.0.lock().total
    }

    /// Returns whether the account has to leave memory to others.
    pub(super) fn is_short(&self, account: AccountId) -> bool {
        let usage = self.0.lock();
        let share = MAX_SHARED_BYTES / usage.accounts.len().max(1);
        let has_more = usage.accounts.get(&account).is_some_and(|bytes| *bytes > share);
        usage.total > MAX_TOTAL_BYTES || (usage.total > MAX_SHARED_BYTES && has_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOUD: AccountId = AccountId(1);
    const QUIET: AccountId = AccountId(2);

    #[test]
    fn an_account_with_much_makes_room_and_another_keeps_what_it_has() {
        let memory = FeedMemory::default();
        memory.resize(LOUD, MAX_SHARED_BYTES, 0);
        assert!(!memory.is_short(LOUD), "it is alone");
        memory.resize(QUIET, MAX_SHARED_BYTES / 4, 0);
        assert_eq!([LOUD, QUIET].map(|account| memory.is_short(account)), [true, false]);
        memory.resize(LOUD, 0, MAX_SHARED_BYTES / 4);
        assert!(!memory.is_short(LOUD), "there is room for both");
        memory.resize(LOUD, 2 * MAX_TOTAL_BYTES, 0);
        assert!(memory.is_short(QUIET), "nothing is left");
        memory.resize(LOUD, 0, 2 * MAX_TOTAL_BYTES + MAX_SHARED_BYTES / 4 * 3);
        memory.resize(QUIET, 0, MAX_SHARED_BYTES / 4);
        assert!(memory.0.lock().accounts.is_empty());
        assert_eq!(memory.total(), 0);
    }
}
