//! Limits the cost of callers without a valid credential, by address. Checks from memory cost nothing and are not
//! counted, so a caller whose key or token was checked before continues, whatever other callers of its address do.

use std::net::IpAddr;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::Rate;
use holdfast_types::limit::{self, Limit, counted_address};

use crate::rate_counter::RateCounter;
use crate::refusals::count_refusal_at;

/// How many times a rate's calls of a second are allowed at once.
const BURST_FACTOR: u32 = 2;
/// Clients behind one address come back together after a failover.
const HANDSHAKE_BURST_FACTOR: u32 = 5;

/// The counts of this gateway.
pub(crate) struct Strangers {
    /// 0 if addresses are not counted, because many callers share one.
    refused_per_second: u32,
    refusals: RateCounter<IpAddr>,
    unknown_keys: RateCounter<IpAddr>,
    unknown_keys_of_all: RateCounter<()>,
    public_pages: RateCounter<IpAddr>,
    handshakes: RateCounter<IpAddr>,
}

impl Strangers {
    /// The default for refused credentials a second from one address.
    pub(crate) const REFUSED_PER_SECOND: u32 = limit::REFUSED_CREDENTIALS_PER_SECOND;

    /// With 0, nothing is counted by address.
    pub(crate) fn new(refused_per_second: u32) -> Self {
        let with_burst = || RateCounter::new(|max| Rate::per_second(max).with_burst_factor(BURST_FACTOR));
        Self {
            refused_per_second,
            refusals: with_burst(),
            unknown_keys: with_burst(),
            unknown_keys_of_all: RateCounter::new(Rate::per_second),
            public_pages: with_burst(),
            handshakes: RateCounter::new(|max| Rate::per_second(max).with_burst_factor(HANDSHAKE_BURST_FACTOR)),
        }
    }

    /// Returns how many refused credentials a second one address may send; 0 if addresses are not counted.
    pub(crate) fn refused_per_second(&self) -> u32 {
        self.refused_per_second
    }

    /// Called before a credential is checked that is not in memory. `from` is the caller's address, if it is known.
    ///
    /// # Errors
    /// `RATE_LIMITED` if too many credentials from there were refused.
    pub(crate) fn check(&self, from: Option<IpAddr>) -> ApiResult<()> {
        let Some(from) = self.counted(from) else { return Ok(()) };
        let max = self.refused_per_second.into();
        self.refusals.check(&from, max).map_err(|wait| limited(&limit::REFUSED_CREDENTIALS, max, wait))
    }

    /// Counts a refused credential.
    pub(crate) fn record_refusal(&self, from: Option<IpAddr>) {
        if let Some(from) = self.counted(from) {
            // One too many changes nothing: `check` refuses until the others are paid off.
            let _ = self.refusals.admit(from, self.refused_per_second.into());
        }
    }

    /// Counts the look-up of a key id that the cluster secret does not authenticate: it was invented, or is older than
    /// that part of ids.
    ///
    /// # Errors
    /// `RATE_LIMITED` if there are too many, from there or in all.
    pub(crate) fn admit_unknown_key(&self, from: Option<IpAddr>) -> ApiResult<()> {
        if let Some(from) = self.counted(from) {
            let max = limit::UNKNOWN_KEYS.default_value();
            self.unknown_keys.admit(from, max).map_err(|wait| limited(&limit::UNKNOWN_KEYS, max, wait))?;
        }
        let (row, max) = (&limit::ALL_UNKNOWN_KEYS, limit::ALL_UNKNOWN_KEYS.default_value());
        let admitted = self.unknown_keys_of_all.admit((), max);
        admitted.map_err(|wait| ApiError::limited(row, max, "try again, or create a new key").retry_in(wait))
    }

    /// Takes back an admitted look-up that found a key: an old one, and no stranger's.
    pub(crate) fn take_back_unknown_key(&self, from: Option<IpAddr>) {
        if let Some(from) = self.counted(from) {
            self.unknown_keys.take_back(&from, limit::UNKNOWN_KEYS.default_value());
        }
        self.unknown_keys_of_all.take_back(&(), limit::ALL_UNKNOWN_KEYS.default_value());
    }

    /// Counts a request that needs no credential. Callers on this machine are not counted.
    ///
    /// # Errors
    /// `RATE_LIMITED` if there are too many from there.
    pub(crate) fn admit_public_page(&self, from: Option<IpAddr>) -> ApiResult<()> {
        let Some(from) = self.counted(from.filter(is_remote)) else { return Ok(()) };
        let (row, max) = (&limit::PUBLIC_PAGES, limit::PUBLIC_PAGES.default_value());
        let admitted = self.public_pages.admit(from, max);
        admitted.map_err(|wait| ApiError::limited(row, max, "send them more slowly").retry_in(wait))
    }

    /// Counts a TLS handshake; returns whether the address may have one more. It may if that keeps nobody waiting, so
    /// that many callers behind one address come back soon. Callers on this machine are not counted.
    pub(crate) fn admit_handshake(&self, from: IpAddr, must_wait: bool) -> bool {
        let Some(from) = self.counted(Some(from).filter(is_remote)) else { return true };
        let max = limit::TLS_HANDSHAKE_RATE.default_value();
        let is_admitted = self.handshakes.admit(from, max).is_ok() || !must_wait;
        if !is_admitted {
            count_refusal_at(&limit::TLS_HANDSHAKE_RATE);
        }
        is_admitted
    }

    /// Returns the address that the calls of a caller count for, if they do.
    fn counted(&self, from: Option<IpAddr>) -> Option<IpAddr> {
        from.filter(|_| self.refused_per_second > 0).map(counted_address)
    }
}

fn limited(limit: &Limit, max: u64, wait: Duration) -> ApiError {
    ApiError::limited(limit, max, "check the credential").retry_in(wait)
}

/// A local process can use the CPU of this machine without a connection, so loopback addresses do not count.
fn is_remote(from: &IpAddr) -> bool {
    !from.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_refused_credentials_is_refused_more_and_others_are_not() {
        let strangers = Strangers::new(20);
        let (bad, good) = (address("192.0.2.1"), address("192.0.2.2"));
        for _ in 0..40 {
            assert!(strangers.check(bad).is_ok());
            strangers.record_refusal(bad);
        }
        let error = strangers.check(bad).unwrap_err();
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(error.ids[0], ("limit", "refused_credentials_per_second".to_owned()));
        assert!(strangers.check(good).is_ok() && strangers.check(None).is_ok());
        tokio::time::advance(Duration::from_millis(60)).await;
        assert!(strangers.check(bad).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_of_unknown_keys_are_limited_by_address_with_room_for_others_and_in_all() {
        let strangers = Strangers::new(20);
        let admitted = |from: &str| (0..100).filter(|_| strangers.admit_unknown_key(address(from)).is_ok()).count();
        assert_eq!(admitted("192.0.2.1"), 10);
        assert_eq!((admitted("2001:db8::1"), admitted("2001:db8::2")), (10, 0), "they are in one network");
        let total: usize = (10..30).map(|host| admitted(&format!("192.0.2.{host}"))).sum();
        assert_eq!(total, 30, "fifty in all");
        let error = strangers.admit_unknown_key(address("192.0.2.99")).unwrap_err();
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(error.ids, [("limit", "all_unknown_keys_per_second".to_owned()), ("max", "50".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_and_handshakes_are_limited_by_address_and_others_have_their_own() {
        let strangers = Strangers::new(20);
        let pages = |from: &str| (0..300).filter(|_| strangers.admit_public_page(address(from)).is_ok()).count();
        assert_eq!((pages("192.0.2.1"), pages("192.0.2.2")), (200, 200));
        let error = strangers.admit_public_page(address("192.0.2.1")).unwrap_err();
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(error.ids, [("limit", "public_pages_per_second".to_owned()), ("max", "100".to_owned())]);
        let handshake = |from: &str, must_wait| strangers.admit_handshake(from.parse().unwrap(), must_wait);
        let handshakes = |from: &str| (0..100).filter(|_| handshake(from, true)).count();
        assert_eq!((handshakes("192.0.2.1"), handshakes("192.0.2.2")), (50, 50));
        assert!(handshake("192.0.2.1", false), "nobody waits");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((pages("192.0.2.1"), handshakes("192.0.2.1")), (100, 10));
        assert_eq!((pages("127.0.0.1"), handshakes("::1")), (300, 100), "they are not limited on this machine");
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
        assert!((0..1_000).all(|_| strangers.admit_public_page(proxy).is_ok()));
        assert!((0..1_000).all(|_| strangers.admit_handshake("192.0.2.1".parse().unwrap(), true)));
        assert_eq!((0..100).filter(|_| strangers.admit_unknown_key(proxy).is_ok()).count(), 50, "all together are");
    }
}
