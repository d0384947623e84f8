//! When the next sign of life is due, and when a connection is too silent to be waited for.

use std::time::Duration;

use tokio::time::Instant;

/// Signs of life come so often in a time to live; a connection that brings no answer for two beats is given up, while
/// there is time for another one.
const KEEP_ALIVES_PER_TTL: u32 = 3;
/// After a sign of life that was not taken.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// Of one connection. One sign of life is under way at a time, so that each answer has one question.
pub(super) struct KeepAliveTimer {
    interval: Duration,
    due_at: Instant,
    sent_at: Option<Instant>,
    /// When the newest answer came.
    last_answer_at: Instant,
}

impl KeepAliveTimer {
    /// The first sign of life is due at that moment.
    pub(super) fn new(ttl: Duration, due_at: Instant) -> Self {
        Self { interval: ttl / KEEP_ALIVES_PER_TTL, due_at, sent_at: None, last_answer_at: Instant::now() }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.sent_at.is_none() && now >= self.due_at
    }

    /// When one will be due, unless one is under way.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.sent_at.is_none().then_some(self.due_at)
    }

    /// The connection is given up then.
    pub(super) fn deadline(&self) -> Instant {
        self.last_answer_at + self.interval * 2
    }

    pub(super) fn on_sent(&mut self, now: Instant) {
        self.sent_at = Some(now);
        self.due_at = now + self.interval;
    }

    /// It was answered. Returns when it had been sent.
    pub(super) fn on_answer(&mut self) -> Option<Instant> {
        self.last_answer_at = Instant::now();
        self.sent_at.take()
    }

    /// It was not taken, and is due again soon.
    pub(super) fn on_failure(&mut self) {
        if self.sent_at.take().is_some() {
            self.due_at = Instant::now() + self.interval.min(RETRY_DELAY);
        }
    }
}
