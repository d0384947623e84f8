//! When the next sign of life is due, and when a connection is too silent to be waited for.

use std::time::Duration;

use tokio::time::Instant;

/// Signs of life come so often in a time to live; a connection that brings no answer for two beats is given up, while
/// there is time for another one.
const BEATS: u32 = 3;
/// After a sign of life that was not taken.
const SOON: Duration = Duration::from_millis(250);

/// Of one connection. One sign of life is under way at a time, so that each answer has one question.
pub(super) struct Pulse {
    beat: Duration,
    due_at: Instant,
    sent_at: Option<Instant>,
    /// When the newest answer came.
    heard_at: Instant,
}

impl Pulse {
    /// The first sign of life is due at that moment.
    pub(super) fn new(ttl: Duration, due_at: Instant) -> Self {
        Self { beat: ttl / BEATS, due_at, sent_at: None, heard_at: Instant::now() }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.sent_at.is_none() && now >= self.due_at
    }

    /// When one will be due, unless one is under way.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.sent_at.is_none().then_some(self.due_at)
    }

    /// The connection is given up then.
    pub(super) fn given_up_at(&self) -> Instant {
        self.heard_at + self.beat * 2
    }

    pub(super) fn sent(&mut self, now: Instant) {
        self.sent_at = Some(now);
        self.due_at = now + self.beat;
    }

    /// It was answered. Returns when it had been sent.
    pub(super) fn answered(&mut self) -> Option<Instant> {
        self.heard_at = Instant::now();
        self.sent_at.take()
    }

    /// It was not taken, and is due again soon.
    pub(super) fn refused(&mut self) {
        if self.sent_at.take().is_some() {
            self.due_at = Instant::now() + self.beat.min(SOON);
        }
    }
}
