//! Semaphores: at most so many permits in use at a time.

use holdfast_api::{
    AcquirePermits, AcquirePermitsAnswer, ApiResult, CheckPermitsAnswer, ConfigureSemaphore, GetSemaphore, ListThings,
    Page, ReleasePermits, ReleasePermitsAnswer, SemaphoreHolders, SemaphoreInfo, ThingName, page_token, validate,
};
use holdfast_types::{
    Command, ConfigureSemaphore as ConfigureCommand, FencingToken, Kind, LocksCommand, Path, PermitCommand,
    PermitQuery, PermitsView, Response, Scopes, Wanted,
};

use super::permits::{CheckedRequest, PermitRequest};
use crate::shard_call::{ShardRequest, expect_answer};
use crate::{AuthContext, CallContext, Service};

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
            let command = Command::Locks(LocksCommand::Permit(PermitCommand::Configure(configure)));
            ShardRequest::from(caller.audited(context, command))
        };
        let (reply, shown) = self.call_and_view(tenant, context, &request.thing.namespace, make).await?;
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
        let checked = CheckedRequest::new(
            PermitRequest {
                thing: request.thing,
                owner: request.owner,
                request_id: request.request_id,
                wanted: Wanted::Permits { weight: request.weight.unwrap_or(1), permits: request.permits },
                priority: request.priority,
                ttl_ms: request.ttl_ms,
                transition_ms: request.transition_ms,
                wait_ms: request.wait_ms,
                poll_ms: request.poll_ms,
                metadata: request.metadata,
                fencing_token: request.fencing_token,
            },
            tenant.limits(),
        )?;
        let (reply, shown) = self.request_permits(caller, context, &checked).await?;
        expect_answer!(reply.outcome?,
            Response::PermitsAcquired {
                outcome, view: PermitsView::Semaphore(semaphore), holders, release_requested, ..
            } => shown.permits_acquired((outcome, release_requested), semaphore, holders))
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
        let (reply, shown) = self.release_of(caller, context, (Kind::Semaphore, &request), Vec::new()).await?;
        expect_answer!(reply.outcome?, Response::PermitsReleased { released, view: PermitsView::Semaphore(semaphore) }
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
        let make = |namespace| PermitQuery::Get { namespace, path: path.clone(), after, limit };
        let (reply, shown) = self.query_permits(tenant, context, namespace, make).await?;
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
        let make = |namespace| {
            let (kind, path, member) = (Kind::Semaphore, path.clone(), None);
            PermitQuery::Check { namespace, kind, path, fencing_token, member }
        };
        let (reply, shown) = self.query_permits(tenant, context, &thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::PermitsChecked { current, view: PermitsView::Semaphore(semaphore) }
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
        self.delete_of(caller, context, Kind::Semaphore, thing).await
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
        let make = |namespace| {
            let (kind, prefix, after) = (Kind::Semaphore, prefix.clone(), after.clone());
            PermitQuery::List { namespace, kind, prefix, after, limit }
        };
        let (reply, shown) = self.query_permits(tenant, context, &request.namespace, make).await?;
        let (semaphores, more) =
            expect_answer!(reply.outcome?, Response::Semaphores { semaphores, more } => (semaphores, more))?;
        let last = semaphores.last().map(|semaphore| &semaphore.path);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        let items = semaphores.into_iter().map(|semaphore| shown.semaphore(semaphore)).collect();
        Ok(Page { items, next_page_token })
    }
}
