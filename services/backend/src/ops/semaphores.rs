//! Semaphores: at most so many permits in use at a time.

use std::pin::pin;
use std::time::Duration;

use holdfast_api::validate::{PermitTerms, WaitOptions};
use holdfast_api::{
    AcquirePermits, AcquirePermitsAnswer, ApiResult, CheckPermitsAnswer, ConfigureSemaphore, GetSemaphore, ListThings,
    Page, ReleasePermits, ReleasePermitsAnswer, SemaphoreHolders, SemaphoreInfo, ThingName, Timestamp, page_token,
    validate,
};
use holdfast_routing::RetryPolicy;
use holdfast_types::{
    AcquirePermits as AcquireCommand, Command, ConfigureSemaphore as ConfigureCommand, FencingToken, Limits,
    LocksCommand, NamespaceRef, Owner, Path, Query, ReleasePermits as ReleaseCommand, Reply, Response, Scopes,
    SemaphoreCommand, SemaphoreQuery,
};
use tokio_util::sync::CancellationToken;

use super::acquire::as_outcome_unknown;
use crate::access_watch::AccessWatch;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

/// What a caller is told whose access can't be checked while it waits.
const WAIT_GIVEN_UP: &str =
    "who calls can't be checked any more, so that the wait is given up; it may have been granted";

impl Service {
    /// Makes a semaphore or changes it; nobody loses permits.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn configure_semaphore(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ConfigureSemaphore,
    ) -> ApiResult<SemaphoreInfo> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::new_thing(&request.thing.name, tenant.limits())?;
        validate::permits(request.permits)?;
        let description = request.description.unwrap_or_default();
        validate::description(&description, tenant.limits())?;
        validate::metadata(&request.metadata, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let configure = ConfigureCommand {
                namespace,
                path: path.clone(),
                permits: request.permits,
                description: description.clone(),
                metadata: request.metadata.clone(),
            };
            let command = Command::Locks(LocksCommand::Semaphore(SemaphoreCommand::Configure(configure)));
            ShardRequest::from(caller.audited(context, command))
        };
        let (reply, shown) = self.call_semaphores(tenant, context, &request.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Semaphore(semaphore) => shown.semaphore(semaphore))
    }

    /// Acquires permits, waits for them, or extends a hold. A refused request is a response, not an error.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND` for a semaphore that does not exist, if the request says not how many permits it has,
    /// `QUOTA_EXCEEDED`, `SESSION_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn acquire_permits(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AcquirePermits,
    ) -> ApiResult<AcquirePermitsAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", &request.thing.namespace)?;
        let checked = CheckedAcquire::new(request, tenant.limits())?;
        let (namespace, waiting) = (&checked.request.thing.namespace, checked.waiting);
        // The rate limit never applies to an extension, because its owner would lose its hold.
        if checked.request.fencing_token.is_none() {
            self.inner.rates.admit(tenant.account, context.body_bytes())?;
        }
        let make = |namespace| {
            let acquire = checked.command(namespace);
            match waiting {
                Some(waiting) => {
                    ShardRequest::WaitForPermits(Box::new(acquire), waiting.poll, CancellationToken::new())
                }
                None => ShardRequest::from(Command::Locks(LocksCommand::Semaphore(SemaphoreCommand::Acquire(acquire)))),
            }
        };
        let longer = waiting.map(|waiting| context.with_wait(Duration::from_millis(waiting.wait_ms)));
        let context = longer.as_ref().unwrap_or(context);
        let answered = pin!(self.call_semaphores(tenant, context, namespace, make));
        let (reply, shown) = match waiting {
            None => answered.await?,
            // A caller without access stops waiting: dropping the call cancels its queued request.
            Some(_) => tokio::select! {
                answer = answered => {
                    let (reply, _) = answer?;
                    // The time of the grant is unknown; before the wait there was none.
                    let shown = ViewBuilder::new(namespace, reply.clock_ms, Timestamp::now());
                    (reply, shown)
                }
                error = AccessWatch::new(self.clone(), caller.clone()).wait_revoked() => {
                    return Err(as_outcome_unknown(error, WAIT_GIVEN_UP));
                }
            },
        };
        expect_answer!(reply.outcome?, Response::PermitsAcquired { outcome, semaphore, holders }
            => shown.permits_acquired(outcome, semaphore, holders))
    }

    /// Releases one hold, or ends the wait for it; a call of an owner without it changes nothing. The rate limit never
    /// applies.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn release_permits(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ReleasePermits,
    ) -> ApiResult<ReleasePermitsAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::existing_thing(&request.thing.name, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        validate::permits_to_release(request.request_id.as_deref(), request.fencing_token)?;
        let make = |namespace| {
            let release = ReleaseCommand {
                namespace,
                path: path.clone(),
                owner: owner.clone(),
                request_id: request.request_id.clone(),
                fencing_token: request.fencing_token,
                message: None,
            };
            ShardRequest::from(Command::Locks(LocksCommand::Semaphore(SemaphoreCommand::Release(release))))
        };
        let (reply, shown) = self.call_semaphores(tenant, context, &request.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::PermitsReleased { released, semaphore }
            => ReleasePermitsAnswer { released, semaphore: shown.semaphore(semaphore) })
    }

    /// Returns a semaphore and a page of its holders, in order of token.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_semaphore(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: GetSemaphore,
    ) -> ApiResult<SemaphoreHolders> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let namespace = &request.thing.namespace;
        let limit = validate::page_size(request.page.page_size)?;
        let path = validate::existing_thing(&request.thing.name, tenant.limits())?;
        let list = format!("holders of {} {namespace:?} {:?}", tenant.account.id, path.0);
        let after: Option<FencingToken> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| SemaphoreQuery::Get { namespace, path: path.clone(), after, limit };
        let (reply, shown) = self.query_semaphores(tenant, context, namespace, make).await?;
        let (semaphore, holders, more) = expect_answer!(reply.outcome?,
            Response::SemaphoreHolders { semaphore, holders, more } => (semaphore, holders, more))?;
        let last = holders.last().map(|holder| holder.fencing_token);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, &last));
        let holders = holders.into_iter().map(|holder| shown.permit_holder(holder)).collect();
        Ok(SemaphoreHolders { semaphore: shown.semaphore(semaphore), holders, next_page_token })
    }

    /// Returns the semaphore, and whether the hold with this token exists now.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn check_permits(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        thing: &ThingName,
        fencing_token: FencingToken,
    ) -> ApiResult<CheckPermitsAnswer> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        let make = |namespace| SemaphoreQuery::Check { namespace, path: path.clone(), fencing_token };
        let (reply, shown) = self.query_semaphores(tenant, context, &thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::SemaphoreChecked { current, semaphore }
            => CheckPermitsAnswer { current, semaphore: shown.semaphore(semaphore) })
    }

    /// Ends all holds and waits of a semaphore, and deletes it.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn delete_semaphore(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        thing: &ThingName,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let delete = SemaphoreCommand::Delete { namespace, path: path.clone() };
            let command = caller.audited(context, Command::Locks(LocksCommand::Semaphore(delete)));
            // A second execution could end holds that were granted in between, as with the deletion of a lock.
            ShardRequest::Command(Box::new(command), RetryPolicy::Never)
        };
        let (reply, _) = self.call_semaphores(tenant, context, &thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Done => ())
    }

    /// Lists the semaphores at and below a path, in order of path.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_semaphores(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListThings,
    ) -> ApiResult<Page<SemaphoreInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("semaphores of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<Path> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| SemaphoreQuery::List { namespace, prefix: prefix.clone(), after: after.clone(), limit };
        let (reply, shown) = self.query_semaphores(tenant, context, &request.namespace, make).await?;
        let (semaphores, more) =
            expect_answer!(reply.outcome?, Response::Semaphores { semaphores, more } => (semaphores, more))?;
        let last = semaphores.last().map(|semaphore| &semaphore.path);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        let items = semaphores.into_iter().map(|semaphore| shown.semaphore(semaphore)).collect();
        Ok(Page { items, next_page_token })
    }

    async fn query_semaphores<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> SemaphoreQuery,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| ShardRequest::from(Query::Semaphore(make(namespace)));
        self.call_semaphores(tenant, context, namespace, make).await
    }

    async fn call_semaphores<'a>(
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
}

/// A validated request for permits.
struct CheckedAcquire {
    request: AcquirePermits,
    path: Path,
    owner: Owner,
    terms: PermitTerms,
    ttl_ms: Option<u64>,
    waiting: Option<WaitOptions>,
}

impl CheckedAcquire {
    fn new(request: AcquirePermits, limits: &Limits) -> ApiResult<Self> {
        let path = match request.fencing_token {
            Some(_) => validate::existing_thing(&request.thing.name, limits)?,
            None => validate::new_thing(&request.thing.name, limits)?,
        };
        let owner = validate::owner(&request.owner)?;
        validate::request_id(&request.request_id)?;
        let terms = validate::permit_terms(request.weight.unwrap_or(1), request.permits, request.priority)?;
        let ttl_ms = validate::permit_ttl_ms(&owner, request.ttl_ms, limits)?;
        validate::transition_ms(request.transition_ms, limits)?;
        validate::metadata(&request.metadata, limits)?;
        let waiting = validate::permit_wait(request.wait_ms, request.poll_ms, request.fencing_token, limits)?;
        Ok(Self { request, path, owner, terms, ttl_ms, waiting })
    }

    fn command(&self, namespace: NamespaceRef) -> AcquireCommand {
        AcquireCommand {
            namespace,
            path: self.path.clone(),
            owner: self.owner.clone(),
            request_id: self.request.request_id.clone(),
            weight: self.terms.weight,
            permits: self.request.permits,
            priority: self.terms.priority,
            ttl_ms: self.ttl_ms,
            transition_ms: self.request.transition_ms,
            wait: validate::to_wait(self.waiting),
            metadata: self.request.metadata.clone(),
            fencing_token: self.request.fencing_token,
            // Only the leader's node knows which attempt of the queued request this call is.
            attempt: 0,
            abandoned: Vec::new(),
            message: None,
        }
    }
}
