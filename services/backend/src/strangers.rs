//! What callers without a valid credential may cost, by their address. What is in memory costs nothing and is not
//! counted, so a caller whose key or token was checked before goes on, whoever else has its address.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::Quota;
use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_types::limit::{self, Limit};
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::rate_clock::RateCounter;

/// Look-ups a second, for all addresses together, of key ids that this cluster's secret does not authenticate.
const UNKNOWN_KEYS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).expect("it is not zero");
const BURST_FACTOR: NonZeroU32 = NonZeroU32::new(2).expect("it is not zero");
/// Maximum addresses in memory. One that is idle for a while starts again with a full burst.
const MAX_ADDRESSES: u64 = 100_000;
/// A second restores a whole burst twice over, so no count is dropped that still matters.
const IDLE_TTL: Duration = Duration::from_secs(60);

/// The counts of this gateway.
pub(crate) struct Strangers {
    /// Absent if addresses are not counted, because many callers share one.
    refused_per_second: Option<NonZeroU32>,
    addresses: Cache<IpAddr, Arc<Stranger>>,
    unknown_keys: RateCounter,
}

/// The counts of one address.
struct Stranger {
    refusals: RateCounter,
    unknown_keys: RateCounter,
    /// Nothing of the address is checked before.
    blocked_until: Mutex<Option<Instant>>,
}

impl Strangers {
    /// The default for refused credentials a second from one address.
    pub(crate) const REFUSED_PER_SECOND: u32 = limit::REFUSED_CREDENTIALS_PER_SECOND;

    /// With 0, nothing is counted by address.
    pub(crate) fn new(refused_per_second: u32) -> Self {
        Self {
            refused_per_second: NonZeroU32::new(refused_per_second),
            addresses: Cache::builder().max_capacity(MAX_ADDRESSES).time_to_idle(IDLE_TTL).build(),
            unknown_keys: RateCounter::new(Quota::per_second(UNKNOWN_KEYS_PER_SECOND)),
        }
    }

    /// Called before a credential is checked that is not in memory. `from` is the caller's address, if it is known.
    ///
    /// # Errors
    /// `RATE_LIMITED` if too many credentials from there were refused.
    pub(crate) fn check(&self, from: Option<IpAddr>) -> ApiResult<()> {
        let stranger = from.and_then(|from| self.addresses.get(&group(from)));
        let blocked_until = stranger.and_then(|stranger| *stranger.blocked_until.lock());
        let wait = blocked_until.map(|until| until.saturating_duration_since(Instant::now()));
        match wait.filter(|wait| !wait.is_zero()) {
            Some(wait) => {
                let max = self.refused_per_second.map_or(0, NonZeroU32::get);
                Err(limited(&limit::REFUSED_CREDENTIALS, max.into(), wait))
            }
            None => Ok(()),
        }
    }

    /// Counts a refused credential.
    pub(crate) fn record_refusal(&self, from: Option<IpAddr>) {
        let Some(stranger) = self.stranger(from) else { return };
        if let Err(wait) = stranger.refusals.admit() {
            *stranger.blocked_until.lock() = Some(Instant::now() + wait);
        }
    }

    /// Counts the look-up of a key id that the cluster secret does not authenticate: it was invented, or is older than
    /// that part of ids.
    ///
    /// # Errors
    /// `RATE_LIMITED` if there are too many, from there or in all.
    pub(crate) fn admit_unknown_key(&self, from: Option<IpAddr>) -> ApiResult<()> {
        if let Some(stranger) = self.stranger(from) {
            let max = limit::UNKNOWN_KEYS.default_value();
            stranger.unknown_keys.admit().map_err(|wait| limited(&limit::UNKNOWN_KEYS, max, wait))?;
        }
        let detail = "this gateway looks up too many API keys that are unknown; try again, or create a new key";
        self.unknown_keys.admit().map_err(|wait| ApiError::new(Code::RateLimited, detail).retry_in(wait))
    }

    /// Takes back an admitted look-up that found a key: an old one, and no stranger's.
    pub(crate) fn take_back_unknown_key(&self, from: Option<IpAddr>) {
        if let Some(stranger) = self.stranger(from) {
            stranger.unknown_keys.take_back();
        }
        self.unknown_keys.take_back();
    }

    /// Returns the counts of an address, if it has any.
    fn stranger(&self, from: Option<IpAddr>) -> Option<Arc<Stranger>> {
        let refused_per_second = self.refused_per_second?;
        Some(self.addresses.get_with(group(from?), || Arc::new(Stranger::new(refused_per_second))))
    }
}

impl Stranger {
    fn new(refused_per_second: NonZeroU32) -> Self {
        let rate = |per_second: NonZeroU32| {
            RateCounter::new(Quota::per_second(per_second).allow_burst(per_second.saturating_mul(BURST_FACTOR)))
        };
        let unknown_keys = u32::try_from(limit::UNKNOWN_KEYS.default_value()).ok().and_then(NonZeroU32::new);
        Self {
            refusals: rate(refused_per_second),
            unknown_keys: rate(unknown_keys.unwrap_or(NonZeroU32::MIN)),
            blocked_until: Mutex::new(None),
        }
    }
}

fn limited(limit: &Limit, max: u64, wait: Duration) -> ApiError {
    ApiError::limited(limit, max, "check the credential").retry_in(wait)
}

/// Returns what counts as one address: whoever has one IPv6 address has all of its network of 64 bits.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_refused_credentials_is_refused_more_and_others_are_not() {
        let strangers = Strangers::new(20);
        let (bad, good) = (address("192.0.2.1"), address("192.0.2.2"));
        for _ in 0..40 {
            strangers.record_refusal(bad);
            assert!(strangers.check(bad).is_ok());
        }
        strangers.record_refusal(bad);
        let error = strangers.check(bad).unwrap_err();
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(error.ids[0], ("limit", "refused_credentials_per_second".to_owned()));
        assert!(strangers.check(good).is_ok() && strangers.check(None).is_ok());
        tokio::time::advance(Duration::from_millis(60)).await;
        assert!(strangers.check(bad).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_of_unknown_keys_are_limited_by_address_and_in_all() {
        let strangers = Strangers::new(20);
        let admitted = |from: &str| (0..100).filter(|_| strangers.admit_unknown_key(address(from)).is_ok()).count();
        assert_eq!(admitted("192.0.2.1"), 10);
        assert_eq!((admitted("2001:db8::1"), admitted("2001:db8::2")), (10, 0), "they are in one network");
        let total: usize = (10..30).map(|host| admitted(&format!("192.0.2.{host}"))).sum();
        assert_eq!(total, 30, "fifty in all");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_found_a_key_costs_nothing() {
        let strangers = Strangers::new(20);
        for _ in 0..100 {
            strangers.admit_unknown_key(address("192.0.2.1")).unwrap();
            strangers.take_back_unknown_key(address("192.0.2.1"));
        }
        let admitted = |from: &str| (0..100).filter(|_| strangers.admit_unknown_key(address(from)).is_ok()).count();
        assert_eq!(admitted("192.0.2.1"), 10);
        assert_eq!((2..12).map(|host| admitted(&format!("192.0.2.{host}"))).sum::<usize>(), 40, "fifty in all");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_addresses_are_not_counted() {
        let strangers = Strangers::new(0);
        let proxy = address("192.0.2.1");
        (0..1_000).for_each(|_| strangers.record_refusal(proxy));
        assert!(strangers.check(proxy).is_ok());
        assert_eq!((0..100).filter(|_| strangers.admit_unknown_key(proxy).is_ok()).count(), 50, "all together are");
    }
}
