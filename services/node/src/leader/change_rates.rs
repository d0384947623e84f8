//! How often accounts change keys or namespaces, counted by the leader of their shard for all gateways together. A
//! shard has one kind of them.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::AccountId;
use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(60);
/// Below this many accounts, those that could make a whole burst again stay in memory.
const MIN_ACCOUNTS: usize = 1_024;

/// For each account, when it could make a whole burst again. The next leader starts without.
#[derive(Debug, Default)]
pub(crate) struct ChangeRates {
    full_at: BTreeMap<AccountId, Instant>,
    /// As many accounts as there may be before they are looked through.
    allowed: usize,
}

impl ChangeRates {
    /// Counts a change of an account that may make `max` a minute, as many at once.
    ///
    /// # Errors
    /// The time until the next change is allowed.
    pub(crate) fn admit(&mut self, account: AccountId, max: u64, now: Instant) -> Result<(), Duration> {
        let interval = PERIOD / u32::try_from(max).unwrap_or(u32::MAX).max(1);
        let full_at = self.full_at.get(&account).map_or(now, |at| now.max(*at)) + interval;
        let wait = full_at.saturating_duration_since(now + PERIOD);
        if !wait.is_zero() {
            return Err(wait);
        }
        if self.full_at.len() >= self.allowed.max(MIN_ACCOUNTS) {
            self.full_at.retain(|_, at| *at > now);
            self.allowed = self.full_at.len() * 2;
        }
        self.full_at.insert(account, full_at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_makes_as_many_changes_a_minute_as_it_may_and_a_burst_after_a_pause() {
        let (mut rates, start) = (ChangeRates::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        (0..3).for_each(|_| assert_eq!(rates.admit(AccountId(1), 3, at(0)), Ok(())));
        assert_eq!(rates.admit(AccountId(1), 3, at(0)), Err(Duration::from_secs(20)));
        assert_eq!(rates.admit(AccountId(2), 3, at(0)), Ok(()), "another account has its own");
        assert_eq!(rates.admit(AccountId(1), 3, at(20)), Ok(()));
        assert_eq!(rates.admit(AccountId(1), 3, at(20)), Err(Duration::from_secs(20)), "a refusal counts nothing");
        (0..3).for_each(|_| assert_eq!(rates.admit(AccountId(1), 3, at(100)), Ok(())));
        assert!(rates.admit(AccountId(1), 3, at(100)).is_err());
    }

    #[test]
    fn accounts_that_make_no_changes_are_forgotten() {
        let (mut rates, start) = (ChangeRates::default(), Instant::now());
        for account in 0..10_000 {
            let now = start + Duration::from_millis(account * 100);
            assert_eq!(rates.admit(AccountId(account), 60, now), Ok(()));
        }
        assert!(rates.full_at.len() <= MIN_ACCOUNTS, "{}", rates.full_at.len());
    }
}
