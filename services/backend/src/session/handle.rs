//! The shard of a session, as seen by one of its connections.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_cluster::Application;
use holdfast_routing::{RetryPolicy, StartGate, StartOutcome, Subscription};
use holdfast_supervise::spawn_temporary;
use holdfast_types::{
    Command, CommandError, KeepAliveOutcome, LocksCommand, MessageSeq, NamespaceRef, Owner, Query, Reply, Response,
    Revision, SessionCommand, SessionKeepAlive, SessionNumber, SessionRequest, SessionUpdate, TableCommand,
    TableReport, Topic,
};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::Service;
use crate::admission::{Admission, AdmissionRequest, Permit, Priority, Share, Sharer};
use crate::route_error::route_error;
use crate::shard_call::{command_bytes, unexpected};

/// How long one command or query may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a command is sent again that a leader of before executed.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// How long beyond its time to live a session may be without a subscription to a leader.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The reply to a keep-alive: the remaining time to live in milliseconds, or why the shard rejects it.
pub(super) type KeepAliveReply = Result<u64, CommandError>;

/// The location of a session, and the epoch of this connection.
#[derive(Debug)]
pub(super) struct SessionHandle {
    pub(super) service: Service,
    pub(super) key: u32,
    pub(super) namespace: NamespaceRef,
    pub(super) session_id: String,
    /// The number of the session in its shard, which stands for all of its names in commands.
    pub(super) number: SessionNumber,
    pub(super) epoch: u64,
    pub(super) ttl_ms: u64,
    /// Whether the connection resumed it.
    pub(super) is_resumed: bool,
    /// The term of the leader that has its last report; 0 before the first.
    pub(super) reported_in: AtomicU64,
    /// The epoch of the namespace's lock table at the opening, if the table is in its leader's memory.
    pub(super) table_epoch: Option<Revision>,
}

impl SessionHandle {
    /// Returns the session as an owner.
    pub(super) fn owner(&self) -> Owner {
        Owner::Session { session_id: self.session_id.clone(), holder: None }
    }

    pub(super) fn message_seq(&self, seq: u64) -> Option<MessageSeq> {
        Some(MessageSeq { epoch: self.epoch, seq })
    }

    /// Returns the command of a request with that sequence number.
    pub(super) fn request(&self, seq: u64, request: SessionRequest) -> LocksCommand {
        let message = MessageSeq { epoch: self.epoch, seq };
        let account = self.namespace.account;
        LocksCommand::Session(SessionCommand { account, session: self.number, message, request })
    }

    /// Returns the report to the leader of an epoch that the session has nothing, after the message with that number.
    pub(super) fn empty_report(&self, table_epoch: Revision, seq: u64) -> TableReport {
        TableReport {
            namespace: self.namespace.clone(),
            session: self.number,
            connection_epoch: self.epoch,
            seq,
            table_epoch,
            part: 1,
            parts: 1,
            granted: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Sends a command once it has a permit. The shard ignores a late copy by its stamp.
    pub(super) async fn command(self: Arc<Self>, command: LocksCommand) -> ApiResult<Reply> {
        // Each connection has one command at a time, so it may wait for its turn.
        let priority = if command.is_urgent() { Priority::High } else { Priority::Patient };
        let permit = self.permit(priority, command_bytes(&command)).await?;
        let command = Command::Locks(command);
        // Passed on by reference: whatever takes a future by value has room for it twice, and each command makes one.
        let sent = pin!(async {
            let (router, deadline) = (&self.service.inner.router, Instant::now() + RESPONSE_TIMEOUT);
            loop {
                let routed = router.command(Application::Locks, self.key, &command, RetryPolicy::LaterTerm, deadline);
                let routed = routed.await.map_err(route_error)?;
                // What a leader of before says counts no more: the one that has the report has the same number of it.
                if routed.term >= self.reported_in.load(Ordering::Relaxed) {
                    return Ok(routed);
                }
                sleep_until(deadline.min(Instant::now() + RETRY_DELAY)).await;
                if Instant::now() >= deadline {
                    return Err(ApiError::new(Code::Unavailable, "the leader of the lock is not reached"));
                }
            }
        });
        Ok(Admission::run(permit, true, None, sent).await?.reply)
    }

    /// Sends a part of a report. Once it is taken, nothing counts that leaders of earlier terms say.
    pub(super) async fn report(self: Arc<Self>, part: TableReport) -> ApiResult<Reply> {
        let command = Command::Locks(LocksCommand::Table(TableCommand::Report(part)));
        let (request, deadline) = (self.admission_request(Priority::High, 0), Instant::now() + RESPONSE_TIMEOUT);
        let handle = Arc::clone(&self);
        let sent = async move {
            let inner = &handle.service.inner;
            let permit = inner.report_admission.acquire(request, deadline).await?;
            let deadline = Instant::now() + RESPONSE_TIMEOUT;
            let (key, again) = (handle.key, RetryPolicy::LaterTerm);
            let routed = inner.router.command(Application::Locks, key, &command, again, deadline);
            Admission::run(permit, true, None, routed.map(|routed| routed.map_err(route_error))).await
        };
        let routed = run_apart("session_report", sent).await.unwrap_or_else(|| Err(interrupted()))?;
        if routed.reply.outcome.is_ok() {
            self.reported_in.fetch_max(routed.term, Ordering::Relaxed);
        }
        Ok(routed.reply)
    }

    async fn permit(&self, priority: Priority, bytes: usize) -> ApiResult<Permit> {
        let request = self.admission_request(priority, bytes);
        self.service.inner.admission.acquire(request, Instant::now() + RESPONSE_TIMEOUT).await
    }

    fn admission_request(&self, priority: Priority, bytes: usize) -> AdmissionRequest {
        AdmissionRequest { share: self.share(), priority, bytes }
    }

    fn share(&self) -> Share {
        Share::of(Sharer::Account(self.namespace.account))
    }

    /// As [`Self::command`], for a report that takes as long as hundreds of other commands: one at a time in this
    /// process.
    pub(super) async fn heavy_command(self: Arc<Self>, command: LocksCommand) -> ApiResult<Reply> {
        let deadline = Instant::now() + MAX_WAIT + Duration::from_millis(self.ttl_ms);
        // It keeps holds, and its connection bounds its bytes.
        let request = self.admission_request(Priority::High, 0);
        // The command has just been made, and writing it takes as long: others are served in between.
        yield_now().await;
        let permit = self.service.inner.heavy_admission.acquire(request, deadline).await?;
        Admission::run(permit, true, None, Arc::clone(&self).command(command)).await
    }

    /// Sends a query once it has a permit.
    pub(super) async fn query(self: Arc<Self>, query: Query) -> ApiResult<Reply> {
        let permit = self.permit(Priority::Patient, 0).await?;
        Admission::run(permit, false, None, self.query_until(query, Instant::now() + RESPONSE_TIMEOUT)).await
    }

    async fn query_until(&self, query: Query, deadline: Instant) -> ApiResult<Reply> {
        let router = &self.service.inner.router;
        router.query(Application::Locks, self.key, &query, deadline).await.map_err(route_error)
    }

    /// Sends a keep-alive, in one call with the keep-alives of other sessions.
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
        let subscription = self.service.inner.router.subscribe(Application::Locks, self.key, topic, None, max_wait);
        subscription.with_gate(self.start_gate(max_wait))
    }

    /// Has subscriptions of sessions that lose a leader together start in turns, in fair shares of the accounts. A
    /// start that takes long waits for a leader that other sessions may not need.
    fn start_gate(&self, max_wait: Duration) -> StartGate {
        let admission = Arc::clone(&self.service.inner.subscription_admission);
        let request = self.admission_request(Priority::Patient, 0);
        Arc::new(move |start| {
            let admission = Arc::clone(&admission);
            let started = async move {
                match admission.acquire(request, Instant::now() + max_wait).await {
                    Ok(mut permit) => permit.run(start).await,
                    Err(error) => StartOutcome::without_permit(&error.to_string()),
                }
            };
            let started = run_apart("session_subscription", started);
            started.map(|outcome| outcome.unwrap_or_else(|| StartOutcome::without_permit("it was interrupted"))).boxed()
        })
    }
}

/// Runs what has a permit in a task of its own, which ends when the returned future is dropped: its connection may wait
/// for a client that does not read, and others for the permit: so it is in no scheduling group. `None` if it panicked.
async fn run_apart<T: Send + 'static>(task: &'static str, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    AbortOnDropHandle::new(spawn_temporary(task, work)).await.ok()
}

fn interrupted() -> ApiError {
    ApiError::new(Code::Unavailable, "a report of the session was interrupted")
}
