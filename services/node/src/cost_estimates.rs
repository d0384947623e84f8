//! Estimates the cost of an account's commands from the measured cost of its earlier ones of the same kind.

use std::collections::HashMap;

use holdfast_core::AccountId;
use tokio::time::{Duration, Instant};

/// Maximum number of ratios: of accounts and kinds whose recent commands cost much more than their minimum.
const MAX_RATIOS: usize = 2_048;
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

/// An account, and the number of a [`holdfast_core::CostKind`]: a release that lets many in, or a large configuration,
/// does not make the account's acquires dear.
pub(crate) type CostKey = (AccountId, u8);

/// Ratio of actual to minimum cost ([`holdfast_core::Command::min_units`]) per account and kind. Unlisted commands cost
/// less than twice the minimum.
#[derive(Debug, Default)]
pub(crate) struct CostEstimates {
    ratios: HashMap<CostKey, Ratio>,
}

impl CostEstimates {
    /// Returns whether no account's commands cost more than their minimum.
    pub(crate) fn is_empty(&self) -> bool {
        self.ratios.is_empty()
    }

    /// Returns the expected cost of an account's command, given its minimum cost.
    pub(crate) fn price(&self, of: CostKey, min_units: u64, now: Instant) -> u64 {
        let ratio = self.ratios.get(&of).map_or(ONE, |ratio| ratio.now(now));
        min_units.saturating_mul(ratio) / ONE
    }

    /// Records the cost of a command. An expensive command counts fully at once; cheap ones lower the ratio gradually.
    pub(crate) fn record(&mut self, of: CostKey, min_units: u64, units: u64, now: Instant) {
        let newest = units.saturating_mul(ONE) / min_units.max(1);
        let known = self.ratios.get(&of).map(|ratio| ratio.now(now));
        if known.is_none() && newest < 2 * ONE {
            return;
        }
        let known = known.unwrap_or(ONE);
        let value = newest.max((known * (SMOOTHING - 1) + newest) / SMOOTHING);
        if value < 2 * ONE {
            self.ratios.remove(&of);
            return;
        }
        if self.ratios.len() >= MAX_RATIOS && !self.ratios.contains_key(&of) {
            // Rare: only accounts with expensive commands remain.
            self.ratios.retain(|_, ratio| ratio.now(now) >= 4 * ONE);
            if self.ratios.len() >= MAX_RATIOS {
                return;
            }
        }
        self.ratios.insert(of, Ratio { value, as_of: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ONE: CostKey = (AccountId(1), 0);

    #[test]
    fn a_dear_command_makes_those_of_the_same_account_dear_until_they_are_cheap_again() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        estimates.record(OF_ONE, 10, 1_000, now);
        assert_eq!(estimates.price(OF_ONE, 10, now), 1_000);
        assert_eq!(estimates.price((AccountId(2), 0), 10, now), 10);
        for _ in 0..200 {
            estimates.record(OF_ONE, 10, 10, now);
        }
        assert_eq!(estimates.price(OF_ONE, 10, now), 10);
        assert!(estimates.ratios.is_empty());
    }

    #[test]
    fn a_dear_command_says_nothing_of_those_of_another_kind() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        let of_other_kind = (AccountId(1), 1);
        estimates.record(OF_ONE, 10, 1_000, now);
        for _ in 0..200 {
            estimates.record(of_other_kind, 10, 10, now);
        }
        assert_eq!([OF_ONE, of_other_kind].map(|of| estimates.price(of, 10, now)), [1_000, 10]);
    }

    #[test]
    fn an_account_that_sends_nothing_is_cheap_again_with_time() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        estimates.record(OF_ONE, 10, 1_000, now);
        assert_eq!(estimates.price(OF_ONE, 10, now + HALF_LIFE), 500);
        assert_eq!(estimates.price(OF_ONE, 10, now + 100 * HALF_LIFE), 10);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut estimates, now) = (CostEstimates::default(), Instant::now());
        for account in 0..2 * MAX_RATIOS as u64 {
            estimates.record((AccountId(account), 0), 10, 1_000, now);
        }
        assert_eq!(estimates.ratios.len(), MAX_RATIOS);
        for account in 0..10 {
            estimates.record((AccountId(account), 0), 10, 1_000, now + 100 * HALF_LIFE);
        }
        estimates.record((AccountId(u64::MAX), 0), 10, 1_000, now + 100 * HALF_LIFE);
        assert_eq!(estimates.ratios.len(), 11);
    }
}
