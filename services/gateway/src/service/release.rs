//! Releasing: one lock, a set, or everything of an owner. Never limited in rate.

use holdfast_core::{Answer, Command, LocksCommand, Owner, Release, Scopes, ToRelease};

use super::acquire::one;
use super::ask::{Ask, expect_answer};
use super::caller::Tenant;
use super::show::Shown;
use super::{CallContext, Caller, ReleaseAnswer, ReleaseLock, ReleaseLocks, ReleaseLocksAnswer, Service, Timestamp};
use crate::error::{ApiError, ApiResult};
use crate::validate;

impl Service {
    /// Releases a lock; by anyone but its holder nothing changes.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn release_lock(
        &self,
        caller: &Caller,
        context: &CallContext,
        request: ReleaseLock,
    ) -> ApiResult<ReleaseAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::known_lock(&request.lock, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        let what = ToRelease::Paths { paths: vec![path], fencing_token: request.fencing_token };
        let ReleaseLocksAnswer { released, locks } =
            self.release(tenant, context, &request.namespace, owner, what).await?;
        Ok(ReleaseAnswer { released, lock: one(locks)? })
    }

    /// Releases several paths, or everything that an owner holds and waits for.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn release_locks(
        &self,
        caller: &Caller,
        context: &CallContext,
        request: ReleaseLocks,
    ) -> ApiResult<ReleaseLocksAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let what = match (&request.paths, request.all) {
            (Some(paths), false) => {
                let paths = validate::paths_to_release(paths, tenant.limits())?;
                ToRelease::Paths { paths, fencing_token: None }
            }
            (None, true) => ToRelease::All,
            (Some(_), true) => return Err(ApiError::invalid("all", "all: does not go with resources")),
            (None, false) => {
                return Err(ApiError::invalid("resources", "resources: needed, unless `all` is true"));
            }
        };
        let owner = validate::owner(&request.owner)?;
        self.release(tenant, context, &request.namespace, owner, what).await
    }

    async fn release(
        &self,
        tenant: Tenant<'_>,
        context: &CallContext,
        namespace: &str,
        owner: Owner,
        what: ToRelease,
    ) -> ApiResult<ReleaseLocksAnswer> {
        tenant.check_namespace("namespace", namespace)?;
        let make = |namespace| {
            let release = Release { namespace, owner: owner.clone(), what: what.clone(), message: None };
            Ask::from(Command::Locks(LocksCommand::Release(release)))
        };
        let asked = Timestamp::now();
        let reply = self.ask_locks(tenant, namespace, context, make).await?;
        let shown = Shown::new(namespace, reply.clock_ms, asked);
        let (released, locks) =
            expect_answer!(reply.outcome?, Answer::Released { released, locks } => (released, locks))?;
        Ok(ReleaseLocksAnswer { released, locks: shown.locks(locks) })
    }
}
