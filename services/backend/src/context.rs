//! What comes with every call, whatever the operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A call's deadline when the caller does not bring its own.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// What a door knows about a call besides its request.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// Names the call in logs and in the header `Holdfast-Request-Id`.
    pub request_id: String,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// `Idempotency-Key`: a creation of the same account with the same key answers as the first did.
    pub idempotency_key: Option<String>,
    /// For calls without a deadline of their own, which are given more time when they wait.
    pub deadline_extension: Option<DeadlineExtension>,
}

/// How much longer a door waits for an operation than the deadline said at first. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct DeadlineExtension(Arc<AtomicU64>);

impl DeadlineExtension {
    fn extend(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// All of it so far.
    pub fn total(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl CallContext {
    /// A call that brings neither a deadline nor an idempotency key.
    pub fn new(request_id: impl Into<String>) -> Self {
        Self {
            request_id: request_id.into(),
            deadline: Instant::now() + DEFAULT_DEADLINE,
            idempotency_key: None,
            deadline_extension: Some(DeadlineExtension::default()),
        }
    }

    /// The same call with that long to go.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Instant::now() + timeout;
        self.deadline_extension = None;
        self
    }

    /// The same call as one that waits for so long: without a deadline of its own it has that much more time.
    #[must_use]
    pub fn with_wait(&self, wait: Duration) -> Self {
        let mut longer = self.clone();
        if let Some(patience) = &self.deadline_extension {
            patience.extend(wait);
            longer.deadline += wait;
        }
        longer
    }

    /// The same call with that idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: Option<String>) -> Self {
        self.idempotency_key = key;
        self
    }
}
