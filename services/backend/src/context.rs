//! The context of every call, independent of the operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The deadline of a call whose caller sets none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// The facts that a frontend knows about a call besides its request.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// Names the call in logs and in the header `Holdfast-Request-Id`.
    pub request_id: String,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// `Idempotency-Key`: a second creation of the same account with the same key gets the response of the first.
    pub idempotency_key: Option<String>,
    /// For calls without a deadline of their own, which get more time when they wait.
    pub deadline_extension: Option<DeadlineExtension>,
}

/// The time that a frontend adds to the first deadline of an operation. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct DeadlineExtension(Arc<AtomicU64>);

impl DeadlineExtension {
    fn extend(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The total extension so far.
    pub fn total(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl CallContext {
    /// Returns the context of a call without a deadline of its own and without an idempotency key.
    pub fn new(request_id: impl Into<String>) -> Self {
        Self {
            request_id: request_id.into(),
            deadline: Instant::now() + DEFAULT_DEADLINE,
            idempotency_key: None,
            deadline_extension: Some(DeadlineExtension::default()),
        }
    }

    /// Returns the same context with this timeout from now.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Instant::now() + timeout;
        self.deadline_extension = None;
        self
    }

    /// Returns the context of the same call when it waits for this long. A call without a deadline of its own gets that
    /// much more time.
    #[must_use]
    pub fn with_wait(&self, wait: Duration) -> Self {
        let mut longer = self.clone();
        if let Some(patience) = &self.deadline_extension {
            patience.extend(wait);
            longer.deadline += wait;
        }
        longer
    }

    /// Returns the same context with this idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: Option<String>) -> Self {
        self.idempotency_key = key;
        self
    }
}
