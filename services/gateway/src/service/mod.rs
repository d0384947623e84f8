//! The operations of the service, the same for every door: check the caller, check the request, ask the shard, show
//! the answer.

mod accounts;
mod api_keys;
mod ask;
mod caller;
mod context;
mod instant;
mod locks;
mod namespaces;
mod requests;
mod show;
mod view;

use std::sync::Arc;

use holdfast_auth::{ClusterSecret, OperatorVerifier};

use crate::directory::{Directory, RateLimits};
use holdfast_routing::Router;

pub use caller::Caller;
pub use context::{CallContext, DEFAULT_DEADLINE};
pub use instant::{Timestamp, parse_instant};
pub use requests::*;
pub use view::*;

/// The operations. A cheap clone; all clones share connections and caches.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) router: Router,
    pub(crate) directory: Directory,
    pub(crate) rates: RateLimits,
    pub(crate) operator: OperatorVerifier,
    pub(crate) cluster_secret: ClusterSecret,
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
        self.inner.directory.fresh()
    }

    /// Ends the connections to nodes and everything that runs in the background. Calls in flight are answered with
    /// `UNAVAILABLE` or `DEADLINE_EXCEEDED`; let them end first.
    pub async fn shutdown(&self) {
        self.inner.directory.shutdown().await;
        self.inner.router.shutdown().await;
    }
}

#[cfg(test)]
mod core_node;
#[cfg(test)]
mod tests;
