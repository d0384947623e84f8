//! Numbers that tell whether cached data of an account is still current. After a change of one account, the gateway
//! checks again only its callers and the callers of the few accounts that share its number.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_types::AccountId;

/// Accounts share a number by the lowest bits of their ids, which are random.
const NUMBERS: usize = 4_096;

pub(super) struct Generations {
    /// Rises with every change.
    any: AtomicU64,
    by_account: Vec<AtomicU64>,
}

impl Default for Generations {
    fn default() -> Self {
        Self { any: AtomicU64::new(0), by_account: (0..NUMBERS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Generations {
    /// Returns a number that rises with each change of any account. If it is the same before a look-up and after the
    /// number of the account was read, what was found belongs to the number of the account.
    pub(super) fn of_any(&self) -> u64 {
        self.any.load(Ordering::Acquire)
    }

    /// Returns a number that rises with each change of the account.
    pub(super) fn of(&self, account: AccountId) -> u64 {
        self.number(account).map_or(0, |number| number.load(Ordering::Acquire))
    }

    /// Call it after the caches have discarded the changed data of the account: a reader of the new number finds
    /// nothing older in them.
    pub(super) fn begin(&self, account: AccountId) {
        // First, so that whoever reads the new number of the account also finds that something has changed.
        self.any.fetch_add(1, Ordering::AcqRel);
        if let Some(number) = self.number(account) {
            number.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// As [`Self::begin`], for all accounts.
    pub(super) fn begin_all(&self) {
        self.any.fetch_add(1, Ordering::AcqRel);
        for number in &self.by_account {
            number.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn number(&self, account: AccountId) -> Option<&AtomicU64> {
        let [low, high, ..] = account.0.to_le_bytes();
        self.by_account.get(usize::from(u16::from_le_bytes([low, high])) % NUMBERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_concerns_its_account_and_a_change_of_all_concerns_everybody() {
        let generations = Generations::default();
        let (one, other) = (AccountId(1), AccountId(2));
        let before = (generations.of_any(), generations.of(one), generations.of(other));
        generations.begin(one);
        assert!(generations.of_any() > before.0 && generations.of(one) > before.1);
        assert_eq!(generations.of(other), before.2);
        generations.begin_all();
        assert!(generations.of(other) > before.2);
    }
}
