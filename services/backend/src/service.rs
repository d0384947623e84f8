//! The handle of all operations, and what they share.

use std::fmt;
use std::sync::Arc;

use holdfast_auth::{ClusterSecret, OperatorVerifier};
use holdfast_routing::Router;
use tokio_util::sync::CancellationToken;

use crate::admission::FairQueue;
use crate::directory::{Directory, RateLimits};
use crate::events::{EventPoller, WatcherLimiter};
use crate::ops::TokenIssuer;

/// The operations. A cheap clone; all clones share connections and caches.
#[derive(Clone)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for Service {
    /// Nothing of what is inside: there are secrets among it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) router: Router,
    pub(crate) directory: Directory,
    pub(crate) rates: RateLimits,
    pub(crate) admission: Arc<FairQueue>,
    pub(crate) operator: OperatorVerifier,
    pub(crate) tokens: TokenIssuer,
    pub(crate) cluster_secret: ClusterSecret,
    pub(crate) watchers: WatcherLimiter,
    pub(crate) event_poller: EventPoller,
    /// Cancelled when the process begins to stop: streams end then, calls go on.
    pub(crate) stopping: CancellationToken,
}

impl Service {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Whether calls can be served: the accounts shard answered lately, without which nobody can be let in.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn ready(&self) -> Result<(), String> {
        self.inner.directory.check_fresh()
    }

    /// Cancelled when the process begins to stop. Whatever has no end of its own ends then.
    pub(crate) fn stopping(&self) -> CancellationToken {
        self.inner.stopping.clone()
    }

    /// Ends streams and connected sessions, with a reason; calls go on.
    pub fn end_streams(&self) {
        self.inner.stopping.cancel();
    }

    /// Ends the connections to nodes and everything that runs in the background. Calls in flight are answered with
    /// `UNAVAILABLE` or `DEADLINE_EXCEEDED`; let them end first.
    pub async fn shutdown(&self) {
        self.inner.directory.shutdown().await;
        self.inner.router.shutdown().await;
    }
}
