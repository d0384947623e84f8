//! Schedules keep-alives, and decides when an unresponsive connection is abandoned.

use std::time::Duration;

use tokio::time::Instant;

use super::lease::SendTime;

/// Keep-alives per time to live. A connection without a reply for two intervals is abandoned, while there is time for
/// another one.
const KEEP_ALIVES_PER_TTL: u32 = 3;
/// Delay after a rejected keep-alive.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// The keep-alives of one connection. At most one is in flight, so that each reply belongs to one keep-alive.
pub(super) struct KeepAliveTimer {
    interval: Duration,
    due_at: Instant,
    sent_at: Option<SendTime>,
    /// When the latest reply arrived.
    last_answer_at: Instant,
}

impl KeepAliveTimer {
    /// Creates a timer; the first keep-alive is due at `due_at`.
    pub(super) fn new(ttl: Duration, due_at: Instant) -> Self {
        Self { interval: ttl / KEEP_ALIVES_PER_TTL, due_at, sent_at: None, last_answer_at: Instant::now() }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.sent_at.is_none() && now >= self.due_at
    }

    /// Returns when the next keep-alive is due, unless one is in flight.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.sent_at.is_none().then_some(self.due_at)
    }

    /// Returns when the connection is abandoned.
    pub(super) fn deadline(&self) -> Instant {
        self.last_answer_at + self.interval * 2
    }

    pub(super) fn on_sent(&mut self, now: SendTime) {
        self.sent_at = Some(now);
        self.due_at = now.monotonic + self.interval;
    }

    /// Records the reply to a keep-alive. Returns when the keep-alive was sent.
    pub(super) fn on_answer(&mut self) -> Option<SendTime> {
        self.last_answer_at = Instant::now();
        self.sent_at.take()
    }

    /// Records that a keep-alive was not accepted; it is due again soon.
    pub(super) fn on_failure(&mut self) {
        if self.sent_at.take().is_some() {
            self.due_at = Instant::now() + self.interval.min(RETRY_DELAY);
        }
    }
}
