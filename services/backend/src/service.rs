//! The handle of all operations, and their shared state.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_api::ApiResult;
use holdfast_auth::{ClusterSecret, OperatorVerifier};
use holdfast_clock::Clocks;
use holdfast_routing::{LocalNode, Router};
use holdfast_supervise::{failing_background_task, failing_process_task};
use tokio_util::sync::CancellationToken;

use crate::AuthContext;
use crate::account_connections::AccountConnections;
use crate::account_rates::AccountRates;
use crate::admission::{Admission, DeferredCalls};
use crate::auth_cache::AuthCache;
use crate::buffers::{AccountBuffers, BufferBudgets};
use crate::directory::Directory;
use crate::events::{EventFeeds, WatcherLimiter};
use crate::ops::TokenIssuer;
use crate::session::RetainedLedgers;
use crate::strangers::Strangers;

/// The operations. Clones are cheap and share connections and caches.
#[derive(Clone)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for Service {
    /// Prints no fields, because some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) router: Router,
    pub(crate) directory: Directory,
    pub(crate) checked_callers: AuthCache,
    pub(crate) rates: AccountRates,
    pub(crate) strangers: Strangers,
    pub(crate) admission: Arc<Admission>,
    /// For work that keeps a processor busy for milliseconds, one at a time: several at once would delay every call of
    /// the others at each of its steps.
    pub(crate) heavy_admission: Arc<Admission>,
    /// For reports of sessions to new leaders. They need permits of their own: until all reports are there, whatever
    /// waits for a lock table keeps the permits of the others.
    pub(crate) report_admission: Arc<Admission>,
    /// For sessions that subscribe again.
    pub(crate) subscription_admission: Arc<Admission>,
    pub(crate) deferred_calls: DeferredCalls,
    pub(crate) buffers: BufferBudgets,
    pub(crate) connections: AccountConnections,
    pub(crate) operator: OperatorVerifier,
    pub(crate) tokens: TokenIssuer,
    pub(crate) cluster_secret: ClusterSecret,
    pub(crate) clocks: Clocks,
    pub(crate) watchers: WatcherLimiter,
    pub(crate) event_feeds: EventFeeds,
    /// The kept ledgers of sessions whose connections ended.
    pub(crate) retained_ledgers: RetainedLedgers,
    /// The node of this process, if there is one.
    pub(crate) local_node: Option<LocalNode>,
    /// Cancelled when the process begins to stop: streams end then, calls continue.
    pub(crate) stopping: CancellationToken,
}

impl Service {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Checks whether calls can be served: no caller can be authenticated without a recent reply of the accounts shard,
    /// the node of this process, if there is one, must serve all its shards, and no task of the process that calls need
    /// may have failed.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn ready(&self) -> Result<(), String> {
        let of_node = self.inner.local_node.as_ref().and_then(|node| node.handler.not_ready());
        of_node.map_or(Ok(()), Err)?;
        self.inner.directory.check_fresh()?;
        failing_process_task().map_or(Ok(()), Err)
    }

    /// Returns the problem of a failed task that calls do not need, if any: a failed connection to one of the nodes,
    /// for example.
    pub fn failing_task(&self) -> Option<String> {
        let of_node = self.inner.local_node.as_ref().and_then(|node| node.handler.failing_task());
        let own = || self.inner.directory.failing_task().or_else(|| self.inner.router.failing_task());
        of_node.or_else(own).or_else(failing_background_task)
    }

    /// Returns the budgets of what this process keeps of the caller's account for a while; none for the operator.
    pub fn account_buffers(&self, caller: &AuthContext) -> AccountBuffers {
        caller.account().map(|account| self.inner.buffers.of_account(account)).unwrap_or_default()
    }

    /// Returns the counts of this process's connections.
    pub fn account_connections(&self) -> AccountConnections {
        self.inner.connections.clone()
    }

    /// Counts a request from this address that needs no credential.
    ///
    /// # Errors
    /// `RATE_LIMITED` if there are too many from there.
    pub fn admit_public_page(&self, from: Option<IpAddr>) -> ApiResult<()> {
        self.inner.strangers.admit_public_page(from)
    }

    /// Counts a TLS handshake with a caller at this address; returns whether there may be one more. It may be one too
    /// many for the address unless it must wait for others.
    pub fn admit_handshake(&self, from: IpAddr, must_wait: bool) -> bool {
        self.inner.strangers.admit_handshake(from, must_wait)
    }

    /// Cancelled when the process begins to stop. Work without an end of its own ends then.
    pub(crate) fn stopping(&self) -> CancellationToken {
        self.inner.stopping.clone()
    }

    /// Ends streams and connected sessions, with a reason; calls continue.
    pub fn end_streams(&self) {
        self.inner.stopping.cancel();
    }

    /// Closes the connections to nodes and stops all background tasks. Calls in flight end with `UNAVAILABLE` or
    /// `DEADLINE_EXCEEDED`, so let them end first.
    pub async fn shutdown(&self) {
        self.inner.directory.shutdown().await;
        self.inner.router.shutdown().await;
    }
}
