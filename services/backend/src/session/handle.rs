//! The shard of a session, as seen by one of its connections.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_cluster::Application;
use holdfast_routing::{RetryPolicy, Subscription};
use holdfast_supervise::spawn_temporary;
use holdfast_types::{
    Command, CommandError, KeepAliveOutcome, LocksCommand, MessageSeq, NamespaceRef, Owner, Query, Reply, Response,
    SessionKeepAlive, SessionUpdate, Topic,
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::Service;
use crate::admission::{FairQueue, Priority};
use crate::route_error::route_error;
use crate::shard_call::unexpected;

/// How long one command or query may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long beyond its time to live a session may be without a subscription to a leader.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The reply to a keep-alive: the remaining time to live in milliseconds, or why the shard rejects it.
pub(super) type KeepAliveReply = Result<u64, CommandError>;

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
        // In a task of its own: a session that waits for its slow client would not go on with this call, and its permit
        // would be missing to all others.
        let call = spawn_temporary("session report", self.admitted_command(command));
        AbortOnDropHandle::new(call)
            .await
            .unwrap_or_else(|_| Err(ApiError::internal("the report of the session was not passed on")))
    }

    async fn admitted_command(self: Arc<Self>, command: LocksCommand) -> ApiResult<Reply> {
        let deadline = Instant::now() + MAX_WAIT + Duration::from_millis(self.ttl_ms);
        let permits = &self.service.inner.heavy_admission;
        let permit = permits.acquire(self.namespace.account, Priority::High, deadline).await?;
        FairQueue::run(permit, true, None, Arc::clone(&self).command(command)).await
    }

    pub(super) async fn query(self: Arc<Self>, query: Query) -> ApiResult<Reply> {
        self.query_until(query, Instant::now() + RESPONSE_TIMEOUT).await
    }

    async fn query_until(&self, query: Query, deadline: Instant) -> ApiResult<Reply> {
        let router = &self.service.inner.router;
        router.query(Application::Locks, self.key, &query, deadline).await.map_err(route_error)
    }

    /// Sends a keep-alive, in one call with those of other sessions.
    pub(super) async fn keep_alive(self: Arc<Self>) -> ApiResult<KeepAliveReply> {
        let deadline = Instant::now() + RESPONSE_TIMEOUT;
        let (key, epoch) = (self.key, self.epoch);
        let (namespace, session_id) = (self.namespace.clone(), self.session_id.clone());
        let session = SessionKeepAlive { key, namespace, session_id, epoch };
        match self.service.inner.router.keep_alive(session, deadline).await.map_err(route_error)? {
            KeepAliveOutcome::Recorded { remaining_ms } => Ok(Ok(remaining_ms)),
            KeepAliveOutcome::Rejected(rejected) => Ok(Err(rejected)),
            KeepAliveOutcome::Undecided => Box::pin(self.keep_alive_alone(deadline)).await,
        }
    }

    /// Sends a keep-alive in a call of its own, which waits until the shard can decide it.
    async fn keep_alive_alone(&self, deadline: Instant) -> ApiResult<KeepAliveReply> {
        let (namespace, session_id) = (self.namespace.clone(), self.session_id.clone());
        let query = Query::KeepAlive { namespace, session_id, epoch: Some(self.epoch) };
        match self.query_until(query, deadline).await?.outcome {
            Ok(Response::Session(session)) => Ok(Ok(session.remaining_ms)),
            Ok(other) => Err(unexpected(&other)),
            Err(rejected) => Ok(Err(rejected)),
        }
    }

    /// Subscribes to the leaders' updates of the session.
    pub(super) fn subscribe(&self) -> Subscription<SessionUpdate> {
        let (namespace, session_id) = (self.namespace.clone(), self.session_id.clone());
        let topic = Topic::Session { namespace, session_id, epoch: self.epoch };
        let max_wait = MAX_WAIT + Duration::from_millis(self.ttl_ms);
        self.service.inner.router.subscribe(Application::Locks, self.key, topic, None, max_wait)
    }
}
