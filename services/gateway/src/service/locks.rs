//! Locks of one path: acquire, release, get, delete, check, list.

use holdfast_core::{
    Acquire, Answer, Claim, Command, LockView, LocksCommand, NamespaceRef, Owner, Path, Query, Release, Reply, Scopes,
};

use super::ask::{Ask, expect_answer};
use super::caller::Tenant;
use super::instant::wall_now;
use super::show::Shown;
use super::{
    AcquireAnswer, AcquireLock, CallContext, Caller, CheckAnswer, ListLocks, LockInfo, Page, ReleaseAnswer,
    ReleaseLock, Service,
};
use crate::error::{ApiError, ApiResult};
use crate::{page_token, validate};
use holdfast_routing::Repeat;

impl Service {
    /// Takes a lock, or extends a hold. A refusal is an answer.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, `QUOTA_EXCEEDED`, besides those of every call.
    pub async fn acquire_lock(
        &self,
        caller: &Caller,
        context: &CallContext,
        request: AcquireLock,
    ) -> ApiResult<AcquireAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let limits = tenant.limits();
        tenant.check_namespace("namespace", &request.namespace)?;
        let path = validate::lock_name(&request.name)?;
        validate::process_id(&request.process_id)?;
        let (asked_at, asked_ns) = (request.expires_at, request.dlocks_expires_at_ns);
        let ttl_ms = validate::ttl_ms(request.ttl_ms, asked_at, asked_ns, limits, wall_now())?;
        validate::transition_ms(request.transition_ms, limits)?;
        validate::metadata(&request.metadata, limits)?;
        if request.fencing_token.is_none() {
            // An extension is never limited: its owner would lose what it holds.
            self.inner.rates.admit(tenant.account)?;
        }
        let claims = vec![Claim { path, mode: request.mode }];
        let make = |namespace| {
            let acquire = Acquire {
                namespace,
                owner: Owner::Process(request.process_id.clone()),
                claims: claims.clone(),
                ttl_ms: Some(ttl_ms),
                transition_ms: request.transition_ms,
                metadata: request.metadata.clone(),
                fencing_token: request.fencing_token,
                asked_expires_at_ns: asked_ns,
            };
            Ask::from(Command::Locks(LocksCommand::Acquire(acquire)))
        };
        let reply = self.ask_locks(tenant, &request.namespace, context, make).await?;
        let shown = Shown::new(&request.namespace, reply.clock_ms);
        let (outcome, locks) = expect_answer!(reply.outcome?, Answer::Acquired { outcome, locks } => (outcome, locks))?;
        Ok(shown.acquired(outcome, one(locks)?))
    }

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
        tenant.check_namespace("namespace", &request.namespace)?;
        let path = validate::lock_name(&request.name)?;
        validate::process_id(&request.process_id)?;
        let make = |namespace| {
            let release = Release {
                namespace,
                owner: Owner::Process(request.process_id.clone()),
                paths: vec![path.clone()],
                fencing_token: request.fencing_token,
            };
            Ask::from(Command::Locks(LocksCommand::Release(release)))
        };
        let reply = self.ask_locks(tenant, &request.namespace, context, make).await?;
        let shown = Shown::new(&request.namespace, reply.clock_ms);
        let (released, locks) =
            expect_answer!(reply.outcome?, Answer::Released { released, locks } => (released, locks))?;
        Ok(ReleaseAnswer { released, lock: shown.lock(one(locks)?) })
    }

    /// A lock as it is, with all its readers; one that nobody holds is `UNLOCKED`.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_lock(
        &self,
        caller: &Caller,
        context: &CallContext,
        namespace: &str,
        name: &str,
    ) -> ApiResult<LockInfo> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::lock_name(name)?;
        let make = |namespace| Ask::from(Query::Lock { namespace, path: path.clone() });
        let reply = self.read_locks(tenant, context, namespace, make).await?;
        let shown = Shown::new(namespace, reply.clock_ms);
        expect_answer!(reply.outcome?, Answer::Lock(lock) => shown.lock(lock))
    }

    /// Ends all holds of a lock, whoever has them.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn delete_lock(
        &self,
        caller: &Caller,
        context: &CallContext,
        namespace: &str,
        name: &str,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        tenant.check_namespace("namespace", namespace)?;
        let path = validate::lock_name(name)?;
        self.inner.rates.admit(tenant.account)?;
        // Done twice it could end a hold that was granted in between, which nobody asked for. So when its outcome is
        // not known, the caller is told so, and repeats it if that is what it wants.
        let make = |namespace| {
            Ask::Command(Command::Locks(LocksCommand::Delete { namespace, path: path.clone() }), Repeat::Never)
        };
        let reply = self.ask_locks(tenant, namespace, context, make).await?;
        expect_answer!(reply.outcome?, Answer::Done => ())
    }

    /// Whether the hold of that token is held now, and the lock.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn check_lock(
        &self,
        caller: &Caller,
        context: &CallContext,
        namespace: &str,
        name: &str,
        fencing_token: u64,
    ) -> ApiResult<CheckAnswer> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::lock_name(name)?;
        let make = |namespace| Ask::from(Query::Check { namespace, path: path.clone(), fencing_token });
        let reply = self.read_locks(tenant, context, namespace, make).await?;
        let shown = Shown::new(namespace, reply.clock_ms);
        let (current, lock) = expect_answer!(reply.outcome?, Answer::Checked { current, lock } => (current, lock))?;
        Ok(CheckAnswer { current, lock: shown.lock(lock) })
    }

    /// Held locks under a path, in order of path.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_locks(
        &self,
        caller: &Caller,
        context: &CallContext,
        request: ListLocks,
    ) -> ApiResult<Page<LockInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("locks of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<Path> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make =
            |namespace| Ask::from(Query::Locks { namespace, prefix: prefix.clone(), after: after.clone(), limit });
        let reply = self.read_locks(tenant, context, &request.namespace, make).await?;
        let shown = Shown::new(&request.namespace, reply.clock_ms);
        let (locks, more) = expect_answer!(reply.outcome?, Answer::Locks { locks, more } => (locks, more))?;
        let last = locks.last().map(|lock| &lock.path);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        Ok(Page { items: locks.into_iter().map(|lock| shown.lock(lock)).collect(), next_page_token })
    }

    async fn read_locks(
        &self,
        tenant: Tenant<'_>,
        context: &CallContext,
        namespace: &str,
        make: impl Fn(NamespaceRef) -> Ask,
    ) -> ApiResult<Reply> {
        tenant.check_namespace("namespace", namespace)?;
        self.inner.rates.admit(tenant.account)?;
        self.ask_locks(tenant, namespace, context, make).await
    }
}

/// The one lock of an answer about one lock.
fn one(locks: Vec<LockView>) -> ApiResult<LockView> {
    let mut locks = locks.into_iter();
    match (locks.next(), locks.next()) {
        (Some(lock), None) => Ok(lock),
        _ => Err(ApiError::internal("a shard answered another number of locks than were named")),
    }
}
