//! A handler that writes down what it is told.

use std::sync::Arc;
use std::time::Instant;

use holdfast_client::{EndReason, LockListener, LockStatus, LossReason, Path, ReleaseRequest, SessionHandler};
use parking_lot::Mutex;

use crate::support::eventually;

#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Waits until that was told.
    pub(crate) async fn eventually(&self, told: &str) {
        eventually(&format!("{told:?} is told"), async || self.0.lock().iter().any(|line| line == told)).await;
    }

    /// Waits until so many were told, and returns them.
    pub(crate) async fn eventually_count(&self, count: usize) -> Vec<String> {
        eventually(&format!("{count} are told"), async || self.0.lock().len() >= count).await;
        self.all()
    }

    fn record(&self, line: String) {
        self.0.lock().push(line);
    }
}

impl SessionHandler for Recorder {
    fn unexpected_unlock(&self, path: &Path, reason: &LossReason) {
        self.record(format!("unlocked {path}: {reason}"));
    }

    fn unexpected_lock(&self, path: &Path, _: u64) {
        self.record(format!("locked {path}"));
    }

    fn revoked(&self, path: &Path, reason: &LossReason) {
        self.record(format!("revoked {path}: {reason}"));
    }

    fn release_requested(&self, request: &ReleaseRequest) {
        self.record(format!("asked for {}: {}", request.path, request.reason));
    }

    fn jeopardy(&self, until: Instant) {
        assert!(until > Instant::now(), "there is time left to do something about it");
        self.record("jeopardy".to_owned());
    }

    fn safe(&self) {
        self.record("safe".to_owned());
    }

    fn ended(&self, reason: &EndReason) {
        self.record(format!("ended: {reason}"));
    }
}

impl LockListener for Recorder {
    fn status_changed(&self, path: &Path, before: LockStatus, now: LockStatus) {
        self.record(format!("{path} {before} {now}"));
    }
}
