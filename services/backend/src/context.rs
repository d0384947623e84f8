//! The context of every call, independent of the operation.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::admission::Permit;

/// The deadline of a call whose caller sets none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// The facts that a frontend knows about a call besides its request.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// Names the call in logs and in the header `Holdfast-Request-Id`.
    pub request_id: Arc<str>,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// `Idempotency-Key`: a second creation of the same account with the same key gets the response of the first.
    pub idempotency_key: Option<String>,
    /// Whether the caller set the deadline. Without a deadline of its own, a call gets more time when it waits.
    pub is_own_deadline: bool,
    /// The address that the call came from, if the frontend knows it: that of the caller, or of a proxy.
    pub peer: Option<IpAddr>,
    /// What the frontend learns of the call besides its response, and tells of it besides its head.
    pub report: CallReport,
}

/// What the backend reports to the frontend of a call besides its response, and the frontend to the backend once it has
/// read the body. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CallReport(Arc<ReportedFacts>);

#[derive(Debug, Default)]
struct ReportedFacts {
    /// In milliseconds.
    deadline_extension: AtomicU64,
    leader_gateway: Mutex<Option<Arc<str>>>,
    heavy_permit: Mutex<Option<Permit>>,
    body_bytes: AtomicU64,
}

impl CallReport {
    fn extend_deadline(&self, by: Duration) {
        self.0.deadline_extension.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time that the frontend adds to the first deadline of the call: the total so far.
    pub fn deadline_extension(&self) -> Duration {
        Duration::from_millis(self.0.deadline_extension.load(Ordering::Relaxed))
    }

    /// Records the length of the body of the call in bytes.
    pub fn set_body_bytes(&self, bytes: usize) {
        self.0.body_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the permit for heavy work that the call has kept.
    pub(crate) fn take_heavy_permit(&self) -> Option<Permit> {
        self.0.heavy_permit.lock().take()
    }

    /// Keeps a permit for heavy work until the response is written: a large page takes as long to write as to read.
    pub(crate) fn attach_heavy_permit(&self, permit: Permit) {
        *self.0.heavy_permit.lock() = Some(permit);
    }

    /// Replaces what an earlier call to a locks shard reported.
    pub(crate) fn set_leader_gateway(&self, address: Option<Arc<str>>) {
        *self.0.leader_gateway.lock() = address;
    }

    /// Returns the address (`host:port`) of the gateway in the node that leads the locks shard that answered last.
    /// `None` before one has answered, and if the leader is unknown or its node has no gateway.
    pub fn leader_gateway(&self) -> Option<Arc<str>> {
        self.0.leader_gateway.lock().clone()
    }
}

impl CallContext {
    /// Returns the context of a call without a deadline of its own and without an idempotency key.
    pub fn new(request_id: impl Into<Arc<str>>) -> Self {
        Self {
            request_id: request_id.into(),
            deadline: Instant::now() + DEFAULT_DEADLINE,
            idempotency_key: None,
            is_own_deadline: false,
            peer: None,
            report: CallReport::default(),
        }
    }

    /// Returns the length of the body in bytes; 0 before the frontend has read it, and without one.
    pub fn body_bytes(&self) -> u64 {
        self.report.0.body_bytes.load(Ordering::Relaxed)
    }

    /// Returns the same context with this timeout from now.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Instant::now() + timeout;
        self.is_own_deadline = true;
        self
    }

    /// Returns the context of the same call when it waits for this long. A call without a deadline of its own gets that
    /// much more time.
    #[must_use]
    pub fn with_wait(&self, wait: Duration) -> Self {
        let mut longer = self.clone();
        if !self.is_own_deadline {
            self.report.extend_deadline(wait);
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
