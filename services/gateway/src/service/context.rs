//! What comes with every call, whatever the operation.

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
}

impl CallContext {
    /// A call that brings neither a deadline nor an idempotency key.
    pub fn new(request_id: impl Into<String>) -> Self {
        Self { request_id: request_id.into(), deadline: Instant::now() + DEFAULT_DEADLINE, idempotency_key: None }
    }

    /// The same call with that long to go.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Instant::now() + timeout;
        self
    }

    /// The same call with that idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: Option<String>) -> Self {
        self.idempotency_key = key;
        self
    }
}
