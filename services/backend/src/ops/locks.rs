//! Reads and deletes locks.

use holdfast_api::{ApiResult, CheckAnswer, ListLocks, Lock, LockName, Page, page_token, validate};
use holdfast_routing::RetryPolicy;
use holdfast_types::{Command, LocksCommand, NamespaceRef, Path, Query, Reply, Response, Scopes};

use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Returns the current state of a lock with all its readers; a lock without holds is `UNLOCKED`.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_lock(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        lock: &LockName,
    ) -> ApiResult<Lock> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::existing_lock(lock, tenant.limits())?;
        let make = |namespace| ShardRequest::from(Query::Lock { namespace, path: path.clone() });
        let (reply, shown) = self.read_locks(tenant, context, namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Lock(lock) => shown.lock(lock))
    }

    /// Ends all holds of a lock, of any owner.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn delete_lock(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        lock: &LockName,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        tenant.check_namespace("namespace", namespace)?;
        let path = validate::existing_lock(lock, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        // A second execution could end a hold that was granted in between, which the caller did not request. So the
        // router never retries: the caller receives an unknown outcome and decides whether to repeat the call.
        let make = |namespace| {
            let command = Command::Locks(LocksCommand::Delete { namespace, path: path.clone() });
            ShardRequest::Command(Box::new(caller.audited(context, command)), RetryPolicy::Never)
        };
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        expect_answer!(reply.outcome?, Response::Done => ())
    }

    /// Returns the lock, and whether the hold with this token exists now.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn check_lock(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        lock: &LockName,
        fencing_token: u64,
    ) -> ApiResult<CheckAnswer> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::existing_lock(lock, tenant.limits())?;
        let make = |namespace| ShardRequest::from(Query::Check { namespace, path: path.clone(), fencing_token });
        let (reply, shown) = self.read_locks(tenant, context, namespace, make).await?;
        let (current, lock) = expect_answer!(reply.outcome?, Response::Checked { current, lock } => (current, lock))?;
        Ok(CheckAnswer { current, lock: shown.lock(lock) })
    }

    /// Lists held locks under a path, in order of path.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_locks(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListLocks,
    ) -> ApiResult<Page<Lock>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("locks of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<Path> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| {
            ShardRequest::from(Query::Locks { namespace, prefix: prefix.clone(), after: after.clone(), limit })
        };
        let (reply, shown) = self.read_locks(tenant, context, &request.namespace, make).await?;
        let (locks, next) = expect_answer!(reply.outcome?, Response::Locks { locks, next } => (locks, next))?;
        let next_page_token = next.map(|last| page_token::encode(&list, &last));
        Ok(Page { items: shown.locks(locks), next_page_token })
    }

    async fn read_locks<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> ShardRequest,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.call_and_view(tenant, context, namespace, make).await
    }
}
