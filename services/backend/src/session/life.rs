//! How long a session is certain to live, counted by a gateway that keeps it alive for its client. The client counts
//! nothing.
//!
//! Invariant: once the life was seen as over, it is over. A late reply does not extend it.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, Code};
use holdfast_clock::{BootInstant, CLOCK_CHECK_INTERVAL, Clocks, with_drift_margin};
use parking_lot::Mutex;
use tokio::time::sleep;

#[derive(Debug)]
struct Certain {
    /// When the opening or the latest answered keep-alive was sent.
    since: BootInstant,
    /// For how long the session is certain to live from then on.
    lifetime: Duration,
    /// A check found that this time is over, or that the machine may have been paused.
    is_over: bool,
}

impl Certain {
    /// Returns the remaining time at that moment; `None` if it is over.
    fn left(&mut self, now: BootInstant) -> Option<Duration> {
        let left = now.duration_since(self.since).and_then(|age| self.lifetime.checked_sub(age));
        self.is_over |= left.is_none_or(|left| left.is_zero());
        left.filter(|_| !self.is_over)
    }
}

/// The life of a session, as far as the service has promised it. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct SessionLife {
    certain: Arc<Mutex<Certain>>,
    clocks: Clocks,
}

impl SessionLife {
    /// Begins with an opening that was sent at `since`, of a session that lives for `ttl` from some later moment.
    pub(super) fn new(clocks: Clocks, since: BootInstant, ttl: Duration) -> Self {
        let certain = Certain { since, lifetime: with_drift_margin(ttl), is_over: false };
        Self { certain: Arc::new(Mutex::new(certain)), clocks }
    }

    /// Returns the time at which a message is sent now.
    pub(super) fn now(&self) -> BootInstant {
        self.clocks.now()
    }

    /// Extends it after the reply to a keep-alive that was sent at `sent`, unless it is over.
    pub(super) fn extend(&self, sent: BootInstant, remaining: Duration) {
        let (now, lifetime) = (self.clocks.now(), with_drift_margin(remaining));
        let mut certain = self.certain.lock();
        let Some(left) = certain.left(now) else { return };
        let new = now.duration_since(sent).and_then(|age| lifetime.checked_sub(age));
        if new.is_some_and(|new| new > left) {
            (certain.since, certain.lifetime) = (sent, lifetime);
        }
    }

    /// Returns true if it is over, so that other owners may hold the session's locks.
    pub(super) fn is_over(&self) -> bool {
        self.certain.lock().left(self.clocks.now()).is_none()
    }

    /// Completes when it is over.
    pub(super) async fn over(self) {
        let (soonest, latest) = CLOCK_CHECK_INTERVAL;
        loop {
            let now = self.clocks.now();
            let Some(left) = self.certain.lock().left(now) else { return };
            sleep(left.clamp(soonest, latest)).await;
        }
    }
}

/// Returns why a connection ends whose session may have ended.
pub(super) fn life_over_error() -> ApiError {
    let detail = "the session may have ended: no leader has confirmed that it lives within its time to live";
    ApiError::new(Code::Unavailable, detail)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// Clocks that a test advances, and their time.
    fn clocks() -> (Clocks, Arc<AtomicU64>) {
        let now_ms = Arc::new(AtomicU64::new(0));
        let (boot_ms, wall_ms) = (Arc::clone(&now_ms), Arc::clone(&now_ms));
        let boot = move || Duration::from_millis(boot_ms.load(Ordering::Relaxed));
        (Clocks::new(boot, move || 1_790_000_000_000 + wall_ms.load(Ordering::Relaxed)), now_ms)
    }

    fn life() -> (SessionLife, Arc<AtomicU64>) {
        let (clocks, now_ms) = clocks();
        (SessionLife::new(clocks.clone(), clocks.now(), TTL), now_ms)
    }

    #[test]
    fn it_counts_from_the_sending_of_what_was_answered_and_stops_early() {
        let (life, now_ms) = life();
        now_ms.store(4_000, Ordering::Relaxed);
        let sent = life.now();
        now_ms.store(9_000, Ordering::Relaxed);
        assert!(!life.is_over());
        life.extend(sent, TTL);
        life.extend(sent, Duration::from_secs(5));
        now_ms.store(13_989, Ordering::Relaxed);
        assert!(!life.is_over(), "less is promised by no later answer");
        now_ms.store(13_990, Ordering::Relaxed);
        assert!(life.is_over());
    }

    #[test]
    fn what_comes_after_the_end_extends_nothing() {
        let (life, now_ms) = life();
        now_ms.store(9_000, Ordering::Relaxed);
        let sent = life.now();
        now_ms.store(9_990, Ordering::Relaxed);
        life.extend(sent, TTL);
        assert!(life.is_over(), "nobody had looked, and yet it was over");
        life.extend(life.now(), TTL);
        assert!(life.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn its_end_wakes_who_waits_for_it() {
        let (life, now_ms) = life();
        let waiting = tokio::spawn(life.clone().over());
        sleep(TTL).await;
        assert!(!waiting.is_finished(), "only the clocks of the machine count");
        now_ms.store(10_000, Ordering::Relaxed);
        waiting.await.unwrap();
        assert!(life.is_over());
    }
}
