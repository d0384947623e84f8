//! The shard of a session, as seen by one of its connections.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::ApiResult;
use holdfast_cluster::Application;
use holdfast_routing::{RetryPolicy, Subscription};
use holdfast_types::{Command, LocksCommand, MessageSeq, NamespaceRef, Owner, Query, Reply, SessionUpdate, Topic};
use tokio::time::Instant;

use crate::Service;
use crate::admission::{FairQueue, Priority};
use crate::route_error::route_error;

/// How long one command or query may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long beyond its time to live a session may be without a subscription to a leader.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The location of a session, and the epoch of this connection.
#[derive(Clone, Debug)]
pub(super) struct SessionHandle {
    pub(super) service: Service,
    pub(super) key: u32,
    pub(super) namespace: NamespaceRef,
    pub(super) session_id: String,
    pub(super) epoch: u64,
    pub(super) ttl_ms: u64,
}

impl SessionHandle {
    /// Returns the owner: the session, or one of its threads.
    pub(super) fn owner(&self, holder: Option<String>) -> Owner {
        Owner::Session { session_id: self.session_id.clone(), holder }
    }

    pub(super) fn message_seq(&self, seq: u64) -> Option<MessageSeq> {
        Some(MessageSeq { epoch: self.epoch, seq })
    }

    /// Sends a command. The shard ignores a late copy by its stamp.
    pub(super) async fn command(self: Arc<Self>, command: LocksCommand) -> ApiResult<Reply> {
        let (router, deadline) = (&self.service.inner.router, Instant::now() + RESPONSE_TIMEOUT);
        let command = Command::Locks(command);
        let sent = router.command(Application::Locks, self.key, &command, RetryPolicy::LaterTerm, deadline).await;
        Ok(sent.map_err(route_error)?.reply)
    }

    /// As [`Self::command`], for one that takes as long as hundreds of others: one at a time in this process.
    pub(super) async fn heavy_command(self: Arc<Self>, command: LocksCommand) -> ApiResult<Reply> {
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        let permits = &self.service.inner.heavy_admission;
        let permit = permits.acquire(self.namespace.account, Priority::High, deadline).await?;
        FairQueue::run(permit, true, None, Arc::clone(&self).command(command)).await
    }

    pub(super) async fn query(self: Arc<Self>, query: Query) -> ApiResult<Reply> {
        let (router, deadline) = (&self.service.inner.router, Instant::now() + RESPONSE_TIMEOUT);
        router.query(Application::Locks, self.key, &query, deadline).await.map_err(route_error)
    }

    /// Sends a keep-alive.
    pub(super) async fn keep_alive(self: Arc<Self>) -> ApiResult<Reply> {
        let (namespace, session_id) = (self.namespace.clone(), self.session_id.clone());
        let epoch = Some(self.epoch);
        self.query(Query::KeepAlive { namespace, session_id, epoch }).await
    }

    /// Subscribes to the leaders' updates of the session.
    pub(super) fn subscribe(&self) -> Subscription<SessionUpdate> {
        let (namespace, session_id) = (self.namespace.clone(), self.session_id.clone());
        let topic = Topic::Session { namespace, session_id, epoch: self.epoch };
        let max_wait = MAX_WAIT + Duration::from_millis(self.ttl_ms);
        self.service.inner.router.subscribe(Application::Locks, self.key, topic, None, max_wait)
    }
}
