//! Calls to shards, shared by all operations.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use holdfast_api::{ApiError, ApiResult, Code, Timestamp, validate};
use holdfast_cluster::{Application, shard_key};
use holdfast_routing::{RetryPolicy, RoutedReply};
use holdfast_types::{
    Account, Acquire, AcquireAtLeast, AcquirePermits, AwaitCondition, BarrierCommand, Claim, Command, CommandError,
    ConditionCommand, CountDown, DEFAULT_PAGE_SIZE, Jobs, LatchCommand, LocksCommand, MemberSpec, Metadata,
    NamespaceRef, Path, PermitCommand, Query, ReleaseTarget, Reply, RequestId, Response,
};
use sha2::{Digest, Sha256};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, AdmissionRequest, Permit, Priority, Share};
use crate::auth::TenantContext;
use crate::directory::KnownNamespace;
use crate::route_error::route_error;
use crate::view_builder::ViewBuilder;
use crate::{CallContext, Service};

/// How much later the deadline of a waiting call is at the shard than at the caller.
const SHARD_DEADLINE_MARGIN: Duration = Duration::from_secs(1);

/// Queries to several shards that are in progress at a time for one call.
const MAX_CONCURRENT_QUERIES: usize = 8;

/// What a segment of a path takes besides its text.
const SEGMENT_BYTES: usize = 24;

const NOT_OPENED: &str = "the namespace was just created and has no locks yet; repeat the call";

/// The payload of a call to a shard. Small, because the functions that pass it on each have room for it.
pub(crate) enum ShardRequest {
    /// A command, written to the log.
    Command(Box<Command>, RetryPolicy),
    /// An acquire that waits for its grant, and how long the locks are kept from others at least, in milliseconds. The
    /// duration bounds this one call of it. The token is cancelled once the request waits at the shard.
    Wait(Box<(Acquire, u64)>, Option<Duration>, CancellationToken),
    /// The same for permits.
    WaitForPermits(Box<AcquirePermits>, Option<Duration>, CancellationToken),
    /// The same for a lock that its owner gives up to await a condition.
    Await(Box<AwaitCondition>, Option<Duration>, CancellationToken),
    /// A query, served from the applied state.
    Query(Box<Query>),
    /// A query whose reply the leader holds back until it is final, or until that instant.
    DeferredQuery(Box<Query>, Instant, CancellationToken),
}

impl ShardRequest {
    fn priority(&self) -> Priority {
        let is_urgent = match self {
            Self::Command(command, _) => command.is_urgent(),
            Self::Query(query) => query.is_urgent(),
            Self::Wait(..) | Self::WaitForPermits(..) | Self::Await(..) | Self::DeferredQuery(..) => {
                return Priority::Patient;
            }
        };
        if is_urgent { Priority::High } else { Priority::Normal }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Command(command, _) => match &**command {
                Command::Locks(command) => command_bytes(command),
                _ => 0,
            },
            Self::Wait(acquire, ..) => acquire_bytes(&acquire.0),
            Self::WaitForPermits(acquire, ..) => permit_bytes(acquire),
            Self::Await(awaits, ..) => await_bytes(awaits),
            Self::Query(_) | Self::DeferredQuery(..) => 0,
        }
    }

    /// The token that is cancelled once the request waits at the shard.
    fn deferred(&self) -> Option<CancellationToken> {
        match self {
            Self::Wait(.., deferred)
            | Self::WaitForPermits(.., deferred)
            | Self::Await(.., deferred)
            | Self::DeferredQuery(.., deferred) => Some(deferred.clone()),
            Self::Command(..) | Self::Query(_) => None,
        }
    }

    /// Whether it is written to the log.
    fn is_command(&self) -> bool {
        matches!(self, Self::Command(..)) || self.is_queued()
    }

    /// Whether its reply is so large that reading and writing it takes milliseconds.
    fn is_heavy(&self) -> bool {
        matches!(self, Self::Query(query) if query.max_rows() > DEFAULT_PAGE_SIZE)
    }

    /// Whether it is a request that may wait in a queue.
    fn is_queued(&self) -> bool {
        matches!(self, Self::Wait(..) | Self::WaitForPermits(..) | Self::Await(..))
    }

    /// Returns a command that is not sent again once it may have been done.
    pub(crate) fn once(command: Command) -> Self {
        Self::Command(Box::new(command), RetryPolicy::Never)
    }
}

impl From<Command> for ShardRequest {
    fn from(command: Command) -> Self {
        Self::Command(Box::new(command), RetryPolicy::LaterTerm)
    }
}

impl From<Query> for ShardRequest {
    fn from(query: Query) -> Self {
        Self::Query(Box::new(query))
    }
}

/// Returns approximately how many bytes a command has. A report counts for none: each connection has one at a time, and
/// bounds its bytes itself. If many resume together, none is refused for the reports of the others.
pub(crate) fn command_bytes(command: &LocksCommand) -> usize {
    match command {
        LocksCommand::Acquire(acquire) | LocksCommand::AcquireAtLeast(AcquireAtLeast { acquire, .. }) => {
            acquire_bytes(acquire)
        }
        LocksCommand::Session(command) => command.as_acquire().map_or(0, |(acquire, _)| claim_bytes(&acquire.claims)),
        LocksCommand::Release(release) => match &release.what {
            ReleaseTarget::Paths { paths, .. } => paths.iter().map(path_bytes).sum(),
            _ => 0,
        },
        LocksCommand::Latch(LatchCommand::CountDown(CountDown { jobs: Jobs::Named(ids), .. })) => {
            ids.iter().map(|id| id.len() + SEGMENT_BYTES).sum()
        }
        LocksCommand::Permit(PermitCommand::Acquire(acquire)) => permit_bytes(acquire),
        LocksCommand::Permit(PermitCommand::Release(release)) => name_bytes(&release.members),
        LocksCommand::Condition(ConditionCommand::Await(awaits)) => await_bytes(awaits),
        LocksCommand::Condition(command) => path_bytes(command.path()),
        LocksCommand::Permit(PermitCommand::ConfigurePool(configure)) => member_bytes(&configure.members),
        LocksCommand::Permit(PermitCommand::ChangePool(change)) => {
            let names = [&change.remove, &change.disable, &change.enable];
            member_bytes(&change.add) + names.into_iter().map(|names| name_bytes(names)).sum::<usize>()
        }
        LocksCommand::Barrier(BarrierCommand::Arrive(arrive)) => {
            path_bytes(&arrive.path) + metadata_bytes(&arrive.metadata)
        }
        LocksCommand::Batch(commands) => commands.iter().map(command_bytes).sum(),
        _ => 0,
    }
}

fn acquire_bytes(acquire: &Acquire) -> usize {
    claim_bytes(&acquire.claims) + metadata_bytes(&acquire.metadata)
}

fn permit_bytes(acquire: &AcquirePermits) -> usize {
    path_bytes(&acquire.path) + metadata_bytes(&acquire.metadata)
}

fn await_bytes(awaits: &AwaitCondition) -> usize {
    path_bytes(&awaits.path) + awaits.condition.len() + awaits.metadata.as_ref().map_or(0, metadata_bytes)
}

fn member_bytes(members: &[MemberSpec]) -> usize {
    members.iter().map(|member| member.name.len() + SEGMENT_BYTES + metadata_bytes(&member.metadata)).sum()
}

fn name_bytes(names: &[String]) -> usize {
    names.iter().map(|name| name.len() + SEGMENT_BYTES).sum()
}

fn metadata_bytes(metadata: &Metadata) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn claim_bytes(claims: &[Claim]) -> usize {
    claims.iter().map(|claim| path_bytes(&claim.path)).sum()
}

fn path_bytes(path: &Path) -> usize {
    path.0.iter().map(|segment| segment.len() + SEGMENT_BYTES).sum()
}

/// A result that contains the reply of a locks shard.
pub(crate) trait AsReply {
    /// The reply.
    fn reply(&self) -> &Reply;
}

impl AsReply for Reply {
    fn reply(&self) -> &Reply {
        self
    }
}

/// Extracts the expected kind of response. Another kind is a fault of the shard.
macro_rules! expect_answer {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => Err($crate::shard_call::unexpected(&other)),
        }
    };
}
pub(crate) use expect_answer;

/// The error for a response of an unexpected kind.
pub(crate) fn unexpected(answer: &Response) -> ApiError {
    tracing::error!(?answer, "unexpected kind of response from shard");
    ApiError::internal("a shard gave an answer that this gateway does not understand")
}

impl Service {
    /// Calls the accounts shard.
    pub(crate) async fn call_accounts(
        &self,
        share: Share,
        ask: impl Into<ShardRequest>,
        context: &CallContext,
    ) -> ApiResult<RoutedReply> {
        let key = shard_key(Application::Accounts, 0, "");
        self.call_with_permit(share, Application::Accounts, key, ask.into(), context).await
    }

    /// Calls the namespaces shard of an account.
    pub(crate) async fn call_namespaces(
        &self,
        account: &Account,
        ask: impl Into<ShardRequest>,
        context: &CallContext,
    ) -> ApiResult<RoutedReply> {
        let key = shard_key(Application::Namespaces, account.id.0, "");
        self.call_with_permit(Share::from(account), Application::Namespaces, key, ask.into(), context).await
    }

    /// Calls the locks shard of a namespace by its name.
    pub(crate) async fn call_locks(
        &self,
        tenant: TenantContext<'_>,
        name: &str,
        context: &CallContext,
        make: impl Fn(NamespaceRef) -> ShardRequest,
    ) -> ApiResult<Reply> {
        let share = Share::from(tenant.account);
        let call = |key, namespace| {
            let ask = make(namespace);
            async move { Ok(self.call_with_permit(share, Application::Locks, key, ask, context).await?.reply) }
        };
        self.with_incarnation(tenant.account, name, context.deadline, call).await
    }

    /// Calls the locks shard of a namespace that the caller may use. Returns the reply, and what shows it.
    pub(crate) async fn call_and_view<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> ShardRequest,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        tenant.check_namespace("namespace", namespace)?;
        let asked = Timestamp::now();
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        let shown = ViewBuilder::new(namespace, reply.clock_ms, asked);
        Ok((reply, shown))
    }

    /// Calls the locks shard that owns the key, about a namespace by its name. The incarnation comes from the cache. If
    /// the shard does not know it, the backend fetches it again, and repeats the call if it changed.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`; `UNAVAILABLE` when the namespace is so new that its locks shard does not know it yet.
    pub(crate) async fn with_incarnation<T: AsReply, F: Future<Output = ApiResult<T>>>(
        &self,
        account: &Account,
        name: &str,
        deadline: Instant,
        call: impl Fn(u32, NamespaceRef) -> F,
    ) -> ApiResult<T> {
        let id = account.id;
        let key = shard_key(Application::Locks, id.0, name);
        let directory = &self.inner.directory;
        let mut unknown = None;
        loop {
            let found = directory.namespace(account, name, deadline).await?;
            let KnownNamespace { incarnation, .. } = found.ok_or_else(|| ApiError::namespace_not_found(name))?;
            if unknown == Some(incarnation) {
                return Err(not_opened(name));
            }
            let answered = call(key, NamespaceRef { account: id, name: name.to_owned(), incarnation }).await?;
            if answered.reply().outcome != Err(CommandError::NamespaceNotFound) {
                return Ok(answered);
            }
            directory.invalidate_namespace(id, name);
            unknown = Some(incarnation);
        }
    }

    /// Sends a call once it has a permit.
    pub(crate) async fn call_with_permit(
        &self,
        share: Share,
        application: Application,
        key: u32,
        ask: ShardRequest,
        context: &CallContext,
    ) -> ApiResult<RoutedReply> {
        let (priority, deferred) = (ask.priority(), ask.deferred());
        let request = AdmissionRequest { share, priority, bytes: ask.bytes() };
        let waits = priority == Priority::Patient;
        // A request that may wait is counted apart, from its start to its end. Whoever asks a held query counts it.
        let _held = ask.is_queued().then(|| self.inner.deferred_calls.acquire(share, request.bytes)).transpose()?;
        let is_question = matches!(ask, ShardRequest::DeferredQuery(..));
        let (is_heavy, is_command) = (ask.is_heavy(), ask.is_command());
        // Pinned once and passed on by reference: whatever takes a future by value has room for it twice, and a call
        // may wait for minutes with all of it.
        let work = pin!(self.call(application, key, ask, context));
        let asked = pin!(async {
            let permit = self.inner.admission.acquire(request, context.deadline).await?;
            let answered = Admission::run(permit, is_command, deferred, work).await;
            let _turn = if is_question { self.inner.deferred_calls.answer_permit(share.sharer).await } else { None };
            answered
        });
        if is_heavy {
            Box::pin(self.run_heavy(request, context, asked)).await
        } else if waits {
            self.run_until_deadline(context.deadline, asked).await
        } else {
            asked.await
        }
    }

    /// Runs a call under the permit for heavy work, which it keeps until the response is written.
    async fn run_heavy<T>(
        &self,
        request: AdmissionRequest,
        context: &CallContext,
        asked: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<T> {
        let kept = context.report.take_heavy_permit().filter(Permit::is_in_flight);
        let mut permit = match kept {
            Some(permit) => permit,
            None => self.inner.heavy_admission.acquire(request, context.deadline).await?,
        };
        let answered = permit.run(asked).await?;
        context.report.attach_heavy_permit(permit);
        // Decoding took long, and so do the views and their text: others are served in between.
        yield_now().await;
        Ok(answered)
    }

    /// Sends queries to several shards for one call, under one permit, and returns the replies in the same order. With
    /// a permit each, the call would fail for an account whose other calls leave it fewer than these. All of the replies
    /// together are heavy.
    pub(crate) async fn query_shards(
        &self,
        share: Share,
        queries: Vec<(Application, u32, Query)>,
        context: &CallContext,
    ) -> ApiResult<Vec<Reply>> {
        let request = AdmissionRequest { share, priority: Priority::Normal, bytes: 0 };
        let call = |(application, key, query): (_, _, Query)| self.call(application, key, query.into(), context);
        let calls: Vec<_> = queries.into_iter().map(call).collect();
        let replies = stream::iter(calls).buffered(MAX_CONCURRENT_QUERIES).map_ok(|routed| routed.reply);
        let asked = async {
            let permit = self.inner.admission.acquire(request, context.deadline).await?;
            Admission::run(permit, false, None, replies.try_collect()).await
        };
        self.run_heavy(request, context, asked).await
    }

    /// Runs a call that waits. An acquire is cancelled here and not by the shard. There, a call that lasts to its
    /// deadline counts as a poll, which keeps its queued request.
    async fn run_until_deadline<T>(
        &self,
        deadline: Instant,
        asked: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<T> {
        let stopping = self.stopping();
        tokio::select! {
            answered = asked => answered,
            () = sleep_until(deadline) => Err(ApiError::deadline_exceeded()),
            // Shutdown would cut long waits off anyway.
            () = stopping.cancelled() => {
                let detail = "this process is stopping and has ended the wait; repeat the call";
                Err(ApiError::new(Code::DeadlineExceeded, detail))
            }
        }
    }

    /// Sends a call that has a permit. Once a locks shard has answered, the report of the call names the gateway of its
    /// leader.
    async fn call(
        &self,
        application: Application,
        key: u32,
        ask: ShardRequest,
        context: &CallContext,
    ) -> ApiResult<RoutedReply> {
        let router = &self.inner.router;
        // Boxed each, so that none has room for the others.
        let routed = match ask {
            ShardRequest::Command(command, repeat) => {
                let routed = Box::pin(router.command(application, key, &command, repeat, context.deadline)).await;
                routed.map_err(route_error)?
            }
            ShardRequest::Wait(acquire, poll, deferred) => {
                let deadline = context.deadline + SHARD_DEADLINE_MARGIN;
                let reply = router.acquire(key, *acquire, poll, deadline, deferred).await.map_err(route_error)?;
                RoutedReply { reply, maybe_done_before: false, term: 0 }
            }
            ShardRequest::WaitForPermits(acquire, poll, deferred) => {
                let deadline = context.deadline + SHARD_DEADLINE_MARGIN;
                let reply = router.acquire_permits(key, *acquire, poll, deadline, deferred).await;
                RoutedReply { reply: reply.map_err(route_error)?, maybe_done_before: false, term: 0 }
            }
            ShardRequest::Await(awaits, poll, deferred) => {
                let deadline = context.deadline + SHARD_DEADLINE_MARGIN;
                let reply = router.await_condition(key, *awaits, poll, deadline, deferred).await;
                RoutedReply { reply: reply.map_err(route_error)?, maybe_done_before: false, term: 0 }
            }
            ShardRequest::DeferredQuery(query, until, deferred) => {
                let deadline = context.deadline + SHARD_DEADLINE_MARGIN;
                let held = Box::pin(router.deferred_query(application, key, &query, until, deadline, deferred));
                let reply = held.await;
                RoutedReply { reply: reply.map_err(route_error)?, maybe_done_before: false, term: 0 }
            }
            ShardRequest::Query(query) => {
                let reply = Box::pin(router.query(application, key, &query, context.deadline)).await;
                RoutedReply { reply: reply.map_err(route_error)?, maybe_done_before: false, term: 0 }
            }
        };
        if application == Application::Locks {
            context.report.set_leader_gateway(router.leader_gateway(application, key));
        }
        Ok(routed)
    }

    /// Returns the id of a creation. With an idempotency key it is the same for the same call of the same account.
    /// Without one it is new, and only retries of this call share it.
    pub(crate) fn request_id(&self, maker: &str, call: &str, context: &CallContext) -> ApiResult<RequestId> {
        let Some(key) = &context.idempotency_key else { return Ok(RequestId(random_bytes()?)) };
        validate::idempotency_key(key)?;
        let mut hasher = Sha256::new();
        for part in [maker, call, key.as_str()] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        let digest: [u8; 32] = hasher.finalize().into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Ok(RequestId(id))
    }
}

/// The namespace exists, but its locks shard does not know it yet: the message of its namespaces shard is still in the
/// outbox. It was not purged there, since then it would no longer exist.
fn not_opened(name: &str) -> ApiError {
    ApiError::new(Code::Unavailable, NOT_OPENED).with("namespace", name)
}

/// Returns whether the call failed only because the locks of a new namespace are not available yet.
pub fn is_not_opened(error: &ApiError) -> bool {
    error.code == Code::Unavailable && error.detail == NOT_OPENED
}

/// A repeat gets the response of the first call. A response about something else means that the caller used its
/// idempotency key for another creation before. This call created nothing.
pub(crate) fn check_repeat(is_of_this_call: bool) -> ApiResult<()> {
    if is_of_this_call {
        return Ok(());
    }
    Err(ApiError::invalid("idempotency_key", "idempotency_key: was used for another creation; take a new one"))
}

/// Returns random bytes for ids.
pub(crate) fn random_bytes<const COUNT: usize>() -> ApiResult<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "system random source failed");
        ApiError::internal("no random id could be generated")
    })?;
    Ok(bytes)
}
