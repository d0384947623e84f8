//! The time until which the session is certain to live, by this machine's clocks.
//!
//! Invariant: once a caller has observed the session as over, no caller observes it as valid again. A late reply does
//! not extend it.

use std::time::Duration;

use holdfast_clock::{BootInstant, CLOCK_CHECK_INTERVAL, Clocks, with_drift_margin};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::EndReason;

/// When a message was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendTime {
    /// Ages what the service promises in its reply.
    boot: BootInstant,
    /// For timers.
    pub(crate) monotonic: Instant,
}

impl SendTime {
    /// Returns the time at which a message is sent now.
    pub(crate) fn now(clocks: &Clocks) -> Self {
        Self { boot: clocks.now(), monotonic: Instant::now() }
    }
}

#[derive(Clone, Debug)]
struct LeaseStatus {
    /// When the latest answered keep-alive was sent.
    sent: SendTime,
    /// For how long the session is certain from then on.
    lifetime: Duration,
    /// Somebody has observed that this time is over, or that the machine may have been paused.
    is_over: bool,
    /// Set when the session has ended.
    ended: Option<EndReason>,
}

impl LeaseStatus {
    /// Returns why the session is unreliable at that moment, if it is.
    fn observe(&mut self, now: BootInstant) -> Option<EndReason> {
        self.is_over |= now.duration_since(self.sent.boot).is_none_or(|age| age >= self.lifetime);
        self.ended.clone().or_else(|| self.is_over.then_some(EndReason::Unreachable))
    }

    fn deadline(&self) -> Instant {
        self.sent.monotonic + self.lifetime
    }
}

/// Tracks the session's validity.
#[derive(Clone, Debug)]
pub(crate) struct SessionLease {
    status: watch::Sender<LeaseStatus>,
    clocks: Clocks,
}

impl SessionLease {
    /// Creates the lease of a session that was requested at `asked_at` and lives for `ttl` from some later moment.
    pub(crate) fn new(asked_at: SendTime, ttl: Duration, clocks: Clocks) -> Self {
        let status = LeaseStatus { sent: asked_at, lifetime: with_drift_margin(ttl), is_over: false, ended: None };
        Self { status: watch::Sender::new(status), clocks }
    }

    /// Returns the time at which a message is sent now.
    pub(crate) fn send_time(&self) -> SendTime {
        SendTime::now(&self.clocks)
    }

    /// Extends the session after the reply to a keep-alive sent at `sent`. Returns whether it arrived in time; if not,
    /// the session has ended.
    pub(crate) fn extend(&self, sent: SendTime, ttl: Duration) -> bool {
        let lifetime = with_drift_margin(ttl);
        let mut in_time = false;
        self.status.send_if_modified(|state| {
            in_time = state.observe(self.clocks.now()).is_none();
            let rises = in_time && sent.monotonic + lifetime > state.deadline();
            if rises {
                (state.sent, state.lifetime) = (sent, lifetime);
            }
            rises
        });
        in_time
    }

    /// Ends the session, unless it has ended. Returns how it ended.
    pub(crate) fn end(&self, reason: EndReason) -> EndReason {
        let mut ended = reason;
        self.status.send_if_modified(|state| match &state.ended {
            Some(before) => {
                ended = before.clone();
                false
            }
            None => {
                state.ended = Some(ended.clone());
                true
            }
        });
        ended
    }

    /// Returns why the session is unreliable now, if it is. Reads the clocks, so that a process that was suspended
    /// learns of the end before anything else happens.
    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        let mut reason = None;
        // No other task extends the session between the look and its result.
        self.status.send_if_modified(|state| {
            let was_over = state.is_over;
            reason = state.observe(self.clocks.now());
            state.is_over != was_over
        });
        reason
    }

    /// Returns until when the session is certain to live, by the monotonic clock. It ends earlier if the machine is
    /// suspended or paused.
    pub(crate) fn deadline(&self) -> Instant {
        self.status.borrow().deadline()
    }

    /// Completes when the session is no longer reliable.
    pub(crate) async fn wait_ended(&self) -> EndReason {
        let mut changes = self.status.subscribe();
        loop {
            let until = changes.borrow_and_update().deadline();
            if let Some(reason) = self.end_reason() {
                return reason;
            }
            let now = Instant::now();
            let (soonest, latest) = CLOCK_CHECK_INTERVAL;
            tokio::select! {
                () = tokio::time::sleep_until(until.clamp(now + soonest, now + latest)) => {}
                changed = changes.changed() => changed.expect("the sender lives in self"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const TTL: Duration = Duration::from_millis(40);

    /// The machine's clocks, which a test puts forward.
    #[derive(Clone, Default)]
    struct TestClocks {
        suspended_ms: Arc<AtomicU64>,
        set_ms: Arc<AtomicU64>,
    }

    impl TestClocks {
        fn clocks(&self) -> Clocks {
            let began = std::time::Instant::now();
            let (suspended, set) = (Arc::clone(&self.suspended_ms), Arc::clone(&self.set_ms));
            let boot = move || began.elapsed() + Duration::from_millis(suspended.load(Ordering::Relaxed));
            let since_boot = boot.clone();
            let wall_ms = move || {
                let elapsed = u64::try_from(since_boot().as_millis()).unwrap();
                1_790_000_000_000 + elapsed + set.load(Ordering::Relaxed)
            };
            Clocks::new(boot, wall_ms)
        }

        fn suspend(&self, time: Duration) {
            self.suspended_ms.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
        }

        fn set_wall_clock(&self, forward_ms: u64) {
            self.set_ms.fetch_add(forward_ms, Ordering::Relaxed);
        }
    }

    fn lease(clocks: &Clocks, ttl: Duration) -> SessionLease {
        SessionLease::new(SendTime::now(clocks), ttl, clocks.clone())
    }

    #[test]
    fn it_counts_from_the_question_and_stops_early() {
        let clocks = Clocks::default();
        let asked_at = SendTime::now(&clocks);
        let lease = SessionLease::new(asked_at, Duration::from_secs(10), clocks);
        assert_eq!(lease.deadline(), asked_at.monotonic + Duration::from_millis(9_990));
        let later = SendTime { monotonic: asked_at.monotonic + Duration::from_secs(1), ..asked_at };
        assert!(lease.extend(later, Duration::from_secs(10)));
        assert_eq!(lease.deadline(), asked_at.monotonic + Duration::from_millis(10_990));
        assert!(lease.extend(asked_at, Duration::from_secs(10)), "an older answer shortens nothing");
        assert_eq!(lease.deadline(), asked_at.monotonic + Duration::from_millis(10_990));
    }

    #[tokio::test]
    async fn what_comes_after_the_end_extends_nothing() {
        let lease = lease(&Clocks::default(), TTL);
        let sent = lease.send_time();
        assert_eq!(lease.wait_ended().await, EndReason::Unreachable);
        assert!(!lease.extend(sent, Duration::from_secs(10)));
        assert_eq!(lease.end_reason(), Some(EndReason::Unreachable));
        assert_eq!(lease.end(EndReason::Expired), EndReason::Expired);
        assert_eq!(lease.end(EndReason::Closed), EndReason::Expired, "it ends once");
    }

    #[tokio::test]
    async fn the_end_wakes_those_who_wait_for_it() {
        let lease = lease(&Clocks::default(), Duration::from_secs(60));
        let waiting = tokio::spawn({
            let lease = lease.clone();
            async move { lease.wait_ended().await }
        });
        assert!(lease.end_reason().is_none());
        lease.end(EndReason::Reset);
        assert_eq!(waiting.await.unwrap(), EndReason::Reset);
    }

    #[tokio::test]
    async fn a_session_ends_while_the_machine_is_suspended() {
        let machine = TestClocks::default();
        let clocks = machine.clocks();
        let lease = lease(&clocks, Duration::from_secs(60));
        machine.suspend(Duration::from_secs(30));
        assert_eq!(lease.end_reason(), None);
        // A keep-alive is answered after the first suspension, and the second one is longer than its time.
        assert!(lease.extend(lease.send_time(), Duration::from_secs(60)));
        let waiting = tokio::spawn({
            let lease = lease.clone();
            async move { lease.wait_ended().await }
        });
        tokio::task::yield_now().await;
        machine.suspend(Duration::from_secs(61));
        assert_eq!(lease.end_reason(), Some(EndReason::Unreachable));
        assert!(lease.deadline() > Instant::now(), "by the monotonic clock there is time left");
        assert_eq!(waiting.await.unwrap(), EndReason::Unreachable);
    }

    #[tokio::test]
    async fn whoever_only_waits_is_told_after_a_suspension_too() {
        let machine = TestClocks::default();
        let lease = lease(&machine.clocks(), Duration::from_secs(60));
        let waiting = tokio::spawn(async move { lease.wait_ended().await });
        tokio::task::yield_now().await;
        machine.suspend(Duration::from_secs(61));
        assert_eq!(waiting.await.unwrap(), EndReason::Unreachable);
    }

    #[test]
    fn a_wall_clock_that_is_set_ends_the_session_for_good() {
        let machine = TestClocks::default();
        let lease = lease(&machine.clocks(), Duration::from_secs(60));
        machine.set_wall_clock(50);
        assert_eq!(lease.end_reason(), None, "so much is counted as a pause");
        machine.set_wall_clock(1_000);
        assert_eq!(lease.end_reason(), Some(EndReason::Unreachable), "the machine may have been paused");
        machine.set_ms.store(0, Ordering::Relaxed);
        assert_eq!(lease.end_reason(), Some(EndReason::Unreachable));
        assert!(!lease.extend(lease.send_time(), Duration::from_secs(60)));
    }
}
