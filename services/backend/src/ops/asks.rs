//! Asks the owners of locks, permits and members of pools to release these.

use holdfast_api::{ApiResult, AskLockAnswer, AskPoolAnswer, AskRelease, AskSemaphoreAnswer, LockName, validate};
use holdfast_routing::RetryPolicy;
use holdfast_types::{
    AskRelease as AskCommand, AskedView, Command, Kind, Limits, LocksCommand, Path, PermitsView, Reply, RequestId,
    Response, Scopes,
};

use crate::shard_call::{ShardRequest, expect_answer, random_bytes};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Asks the owners of a lock and, without force, the owners of conflicting holds above or below it.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED` unless it is with force, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn ask_lock(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AskRelease,
    ) -> ApiResult<AskLockAnswer> {
        let (reply, shown) = self.propose_ask(caller, context, Kind::Lock, &request).await?;
        expect_answer!(reply.outcome?, Response::ReleaseAsked { asked, truncated, view: AskedView::Lock(lock) }
            => AskLockAnswer { asked, truncated, lock: shown.lock(lock) })
    }

    /// Asks the holders of a semaphore.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, besides those of [`Service::ask_lock`].
    pub async fn ask_semaphore(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AskRelease,
    ) -> ApiResult<AskSemaphoreAnswer> {
        let (reply, shown) = self.propose_ask(caller, context, Kind::Semaphore, &request).await?;
        expect_answer!(reply.outcome?,
            Response::ReleaseAsked { asked, truncated, view: AskedView::Permits(PermitsView::Semaphore(semaphore)) }
                => AskSemaphoreAnswer { asked, truncated, semaphore: shown.semaphore(semaphore) })
    }

    /// Asks the holders of a pool, or that of a member.
    ///
    /// # Errors
    /// As [`Service::ask_semaphore`].
    pub async fn ask_pool(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AskRelease,
    ) -> ApiResult<AskPoolAnswer> {
        let (reply, shown) = self.propose_ask(caller, context, Kind::Pool, &request).await?;
        expect_answer!(reply.outcome?,
            Response::ReleaseAsked { asked, truncated, view: AskedView::Permits(PermitsView::Pool(pool)) }
                => AskPoolAnswer { asked, truncated, pool: shown.pool(pool) })
    }

    async fn propose_ask<'a>(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        kind: Kind,
        request: &'a AskRelease,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        let tenant = caller.require(if request.force { Scopes::LOCKS_FORCE } else { Scopes::LOCKS_WRITE })?;
        let path = path_of(kind, &request.name, tenant.limits())?;
        let reason = request.reason.clone().unwrap_or_default();
        validate::ask_release(request.member.as_deref(), &reason, request.within_ms)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        // The same for all copies of this call: owners are told of it once.
        let request_id = RequestId(random_bytes()?);
        let by = caller.principal().account().map(|principal| principal.key_id.clone()).unwrap_or_default();
        let make = |namespace| {
            let command = Command::Locks(LocksCommand::AskRelease(AskCommand {
                namespace,
                kind,
                path: path.clone(),
                member: request.member.clone(),
                request_id,
                by: by.clone(),
                reason: reason.clone(),
                within_ms: request.within_ms,
                force: request.force,
            }));
            match request.force {
                false => ShardRequest::from(command),
                // A second execution could end a hold that was granted in between, as with the deletion of a lock.
                true => ShardRequest::Command(Box::new(caller.audited(context, command)), RetryPolicy::Never),
            }
        };
        self.call_and_view(tenant, context, &request.namespace, make).await
    }
}

fn path_of(kind: Kind, name: &LockName, limits: &Limits) -> ApiResult<Path> {
    if kind == Kind::Lock { validate::existing_lock(name, limits) } else { validate::existing_thing(name, limits) }
}
