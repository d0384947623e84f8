//! Estimates the cost of an account's commands from the measured cost of its earlier ones.

use std::collections::HashMap;

use holdfast_core::AccountId;
use tokio::time::{Duration, Instant};

/// Maximum number of tracked accounts: accounts whose recent commands cost much more than their minimum.
const MAX_ACCOUNTS: usize = 1_024;
/// Ratios are stored in sixteenths.
const ONE: u64 = 16;
/// Weight of the known ratio relative to the newest sample.
const SMOOTHING: u64 = 16;
/// The ratio of an idle account halves in this time: who pauses between bursts of expensive commands is not taken for
/// cheap each time. The commands of a busy account lower it much faster.
const HALF_LIFE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
struct Ratio {
    value: u64,
    as_of: Instant,
}

impl Ratio {
    fn now(&self, now: Instant) -> u64 {
        let halves = now.saturating_duration_since(self.as_of).as_millis() / HALF_LIFE.as_millis();
        self.value.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0).max(ONE)
    }
}

/// Ratio of actual to minimum cost ([`holdfast_core::Command::min_units`]) per account. An unlisted account's commands
/// cost less than twice the minimum.
#[derive(Debug, Default)]
pub(crate) struct CostEstimates {
    ratios: HashMap<AccountId, Ratio>,
}

impl CostEstimates {
    /// Returns whether an account's commands cost more than their minimum.
    pub(crate) fn is_empty(&self) -> bool {
        self.ratios.is_empty()
    }

    /// Returns the expected cost of an account's command, given its minimum cost.
    pub(crate) fn price(&self, account: AccountId, min_units: u64, now: Instant) -> u64 {
        let ratio = self.ratios.get(&account).map_or(ONE, |ratio| ratio.now(now));
        min_units.saturating_mul(ratio) / ONE
    }

    /// Records the cost of a command. An expensive command counts fully at once; cheap ones lower the ratio gradually.
    pub(crate) fn record(&mut self, account: AccountId, min_units: u64, units: u64, now: Instant) {
        let newest = units.saturating_mul(ONE) / min_units.max(1);
        let known = self.ratios.get(&account).map(|ratio| ratio.now(now));
        if known.is_none() && newest < 2 * ONE {
            return;
        }
        let known = known.unwrap_or(ONE);
        let value = newest.max((known * (SMOOTHING - 1) + newest) / SMOOTHING);
        if value < 2 * ONE {
            self.ratios.remove(&account);
            return;
        }
        if self.ratios.len() >= MAX_ACCOUNTS && !self.ratios.contains_key(&account) {
            // Rare: only accounts with expensive commands remain.
            self.ratios.retain(|_, ratio| ratio.now(now) >= 4 * ONE);
            if self.ratios.len() >= MAX_ACCOUNTS {
                return;
            }
        }
        self.ratios.insert(account, Ratio { value, as_of: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_command_makes_those_of_the_same_account_dear_until_they_are_cheap_again() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        estimates.record(AccountId(1), 10, 1_000, now);
        assert_eq!(estimates.price(AccountId(1), 10, now), 1_000);
        assert_eq!(estimates.price(AccountId(2), 10, now), 10);
        for _ in 0..200 {
            estimates.record(AccountId(1), 10, 10, now);
        }
        assert_eq!(estimates.price(AccountId(1), 10, now), 10);
        assert!(estimates.ratios.is_empty());
    }

    #[test]
    fn an_account_that_sends_nothing_is_cheap_again_with_time() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        estimates.record(AccountId(1), 10, 1_000, now);
        assert_eq!(estimates.price(AccountId(1), 10, now + HALF_LIFE), 500);
        assert_eq!(estimates.price(AccountId(1), 10, now + 100 * HALF_LIFE), 10);
    }

    #[test]
    fn only_so_many_accounts_are_remembered() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        for account in 0..2 * MAX_ACCOUNTS as u64 {
            estimates.record(AccountId(account), 10, 1_000, now);
        }
        assert_eq!(estimates.ratios.len(), MAX_ACCOUNTS);
        for account in 0..10 {
            estimates.record(AccountId(account), 10, 1_000, now + 100 * HALF_LIFE);
        }
        estimates.record(AccountId(u64::MAX), 10, 1_000, now + 100 * HALF_LIFE);
        assert_eq!(estimates.ratios.len(), 11);
    }
}
