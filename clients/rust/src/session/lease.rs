//! The time until which the session is certain to live, by this machine's clock.
//!
//! Invariant: once a caller has observed the deadline as passed, no caller observes it as valid again. A late reply
//! does not extend it.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::EndReason;

/// Clients stop earlier than the service by this fraction of the time to live, to allow for clock drift.
const DRIFT_DIVISOR: u32 = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct LeaseStatus {
    /// The session may end from then on, unless a keep-alive is answered before.
    pub(crate) deadline: Instant,
    /// Set when the session has ended.
    pub(crate) ended: Option<EndReason>,
}

impl LeaseStatus {
    /// Returns why the session is unreliable at that moment, if it is.
    fn end_reason_at(&self, now: Instant) -> Option<EndReason> {
        self.ended.clone().or_else(|| (now >= self.deadline).then_some(EndReason::Unreachable))
    }
}

/// Tracks the session's validity.
#[derive(Clone, Debug)]
pub(crate) struct SessionLease(watch::Sender<LeaseStatus>);

impl SessionLease {
    /// Creates the lease of a session that was requested at `asked_at` and lives for `ttl` from some later moment.
    pub(crate) fn new(asked_at: Instant, ttl: Duration) -> Self {
        Self(watch::Sender::new(LeaseStatus { deadline: asked_at + with_drift_margin(ttl), ended: None }))
    }

    /// Extends the session after the reply to a keep-alive sent at `sent_at`. Returns whether it arrived in time; if
    /// not, the session has ended.
    pub(crate) fn extend(&self, sent_at: Instant, ttl: Duration) -> bool {
        let until = sent_at + with_drift_margin(ttl);
        let mut in_time = false;
        self.0.send_if_modified(|state| {
            in_time = state.end_reason_at(Instant::now()).is_none();
            let rises = in_time && until > state.deadline;
            if rises {
                state.deadline = until;
            }
            rises
        });
        in_time
    }

    /// Ends the session, unless it has ended. Returns how it ended.
    pub(crate) fn end(&self, reason: EndReason) -> EndReason {
        let mut ended = reason;
        self.0.send_if_modified(|state| match state.end_reason_at(Instant::now()) {
            Some(before) if state.ended.is_some() => {
                ended = before;
                false
            }
            _ => {
                state.ended = Some(ended.clone());
                true
            }
        });
        ended
    }

    /// Returns why the session is unreliable now, if it is. Reads the clock, so that a process that was suspended
    /// learns of the end before anything else happens.
    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        let state = self.0.borrow();
        // While the state is borrowed, no other task extends it.
        state.end_reason_at(Instant::now())
    }

    /// Returns until when the session is certain to live.
    pub(crate) fn deadline(&self) -> Instant {
        self.0.borrow().deadline
    }

    /// Completes when the session is no longer reliable.
    pub(crate) async fn wait_ended(&self) -> EndReason {
        let mut changes = self.0.subscribe();
        loop {
            let (until, over) = {
                let state = changes.borrow_and_update();
                (state.deadline, state.end_reason_at(Instant::now()))
            };
            if let Some(reason) = over {
                return reason;
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                changed = changes.changed() => changed.expect("the sender lives in self"),
            }
        }
    }
}

fn with_drift_margin(ttl: Duration) -> Duration {
    ttl - ttl / DRIFT_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(40);

    #[test]
    fn it_counts_from_the_question_and_stops_early() {
        let now = Instant::now();
        let lease = SessionLease::new(now, Duration::from_secs(10));
        assert_eq!(lease.deadline(), now + Duration::from_millis(9_990));
        assert!(lease.extend(now + Duration::from_secs(1), Duration::from_secs(10)));
        assert_eq!(lease.deadline(), now + Duration::from_millis(10_990));
        assert!(lease.extend(now, Duration::from_secs(10)), "an older answer shortens nothing");
        assert_eq!(lease.deadline(), now + Duration::from_millis(10_990));
    }

    #[tokio::test]
    async fn what_comes_after_the_end_extends_nothing() {
        let lease = SessionLease::new(Instant::now(), TTL);
        let sent_at = Instant::now();
        assert_eq!(lease.wait_ended().await, EndReason::Unreachable);
        assert!(!lease.extend(sent_at, Duration::from_secs(10)));
        assert_eq!(lease.end_reason(), Some(EndReason::Unreachable));
        assert_eq!(lease.end(EndReason::Expired), EndReason::Expired);
        assert_eq!(lease.end(EndReason::Closed), EndReason::Expired, "it ends once");
    }

    #[tokio::test]
    async fn the_end_wakes_those_who_wait_for_it() {
        let lease = SessionLease::new(Instant::now(), Duration::from_secs(60));
        let waiting = tokio::spawn({
            let lease = lease.clone();
            async move { lease.wait_ended().await }
        });
        assert!(lease.end_reason().is_none());
        lease.end(EndReason::Reset);
        assert_eq!(waiting.await.unwrap(), EndReason::Reset);
    }
}
