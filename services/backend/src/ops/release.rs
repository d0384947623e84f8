//! Releases one lock, a set, or everything of an owner. The rate limit never applies.

use holdfast_api::{ApiError, ApiResult, ReleaseAnswer, ReleaseLock, ReleaseLocks, ReleaseLocksAnswer, validate};
use holdfast_types::{Command, LocksCommand, Owner, Release, ReleaseTarget, Response, Scopes};

use super::acquire::single_lock;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Releases a lock; a call of an owner without a hold changes nothing.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn release_lock(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ReleaseLock,
    ) -> ApiResult<ReleaseAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::existing_lock(&request.lock, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        let what = ReleaseTarget::Paths { paths: vec![path], fencing_token: request.fencing_token };
        let ReleaseLocksAnswer { released, locks } =
            self.release(tenant, context, &request.namespace, owner, what).await?;
        Ok(ReleaseAnswer { released, lock: single_lock(locks)? })
    }

    /// Releases several paths, or all holds and waiting requests of an owner.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn release_locks(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ReleaseLocks,
    ) -> ApiResult<ReleaseLocksAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let what = match (&request.paths, request.all) {
            (Some(paths), false) => {
                let paths = validate::paths_to_release(paths, tenant.limits())?;
                ReleaseTarget::Paths { paths, fencing_token: None }
            }
            (None, true) => ReleaseTarget::All,
            (Some(_), true) => return Err(ApiError::invalid("all", "all: may not be combined with resources")),
            (None, false) => {
                return Err(ApiError::invalid("resources", "resources: needed, unless `all` is true"));
            }
        };
        let owner = validate::owner(&request.owner)?;
        self.release(tenant, context, &request.namespace, owner, what).await
    }

    async fn release(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &str,
        owner: Owner,
        what: ReleaseTarget,
    ) -> ApiResult<ReleaseLocksAnswer> {
        let make = |namespace| {
            let release = Release { namespace, owner: owner.clone(), what: what.clone(), message: None };
            ShardRequest::from(Command::Locks(LocksCommand::Release(release)))
        };
        let (reply, shown) = self.call_and_view(tenant, context, namespace, make).await?;
        let (released, locks) =
            expect_answer!(reply.outcome?, Response::Released { released, locks } => (released, locks))?;
        Ok(ReleaseLocksAnswer { released, locks: shown.locks(locks) })
    }
}
