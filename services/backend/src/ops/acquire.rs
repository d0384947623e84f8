//! Acquiring: one lock or a set, at once or after a wait, or extending a hold.

use std::time::Duration;

use holdfast_api::validate::WaitOptions;
use holdfast_api::{
    AcquireAnswer, AcquireLock, AcquireLocks, AcquireLocksAnswer, ApiError, ApiResult, Code, LockInfo, Terms,
    Timestamp, validate, wall_now,
};
use holdfast_core::{Acquire, Claim, Command, LocksCommand, Owner, Query, Response, Scopes};
use tokio_util::sync::CancellationToken;

use crate::access_watch::AccessWatch;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

/// An acquire that was checked.
struct CheckedAcquire<'a> {
    namespace: &'a str,
    owner: Owner,
    claims: Vec<Claim>,
    ttl_ms: Option<u64>,
    waiting: Option<WaitOptions>,
    request_id: Option<String>,
    terms: &'a Terms,
}

impl Service {
    /// Takes a lock, waits for it, or extends a hold. A refusal is an answer.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, `SESSION_NOT_FOUND`, `QUOTA_EXCEEDED`, besides those of every call.
    pub async fn acquire_lock(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AcquireLock,
    ) -> ApiResult<AcquireAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let terms = &request.terms;
        let path = match terms.fencing_token {
            Some(_) => validate::existing_lock(&request.lock, tenant.limits())?,
            None => validate::new_lock(&request.lock, tenant.limits())?,
        };
        let claims = vec![Claim { path, mode: request.mode }];
        let owner = validate::owner(&request.owner)?;
        let checked = check_acquire(tenant, &request.namespace, owner, claims, terms)?;
        let AcquireLocksAnswer { success, fencing_token, reason, signed_grants, locks } =
            self.acquire(caller, context, checked).await?;
        let signed_grant = signed_grants.and_then(|grants| grants.into_iter().next());
        Ok(AcquireAnswer { success, fencing_token, reason, signed_grant, lock: single_lock(locks)? })
    }

    /// Takes several paths at once, all of them or none.
    ///
    /// # Errors
    /// As for one lock.
    pub async fn acquire_locks(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AcquireLocks,
    ) -> ApiResult<AcquireLocksAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let claims = validate::claims(&request.resources, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        if let Some(request_id) = &request.request_id {
            validate::request_id(request_id)?;
        }
        let mut checked = check_acquire(tenant, &request.namespace, owner, claims, &request.terms)?;
        checked.request_id.clone_from(&request.request_id);
        self.acquire(caller, context, checked).await
    }

    async fn acquire(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        checked: CheckedAcquire<'_>,
    ) -> ApiResult<AcquireLocksAnswer> {
        let tenant = caller.tenant()?;
        // An extension is never limited: its owner would lose what it holds.
        if checked.terms.fencing_token.is_none()
            && let Err(limited) = self.inner.rates.admit(tenant.account)
        {
            // Looking whether it is one must cost less than what is refused.
            let may_look = self.inner.rates.admit_extension_check(tenant.account);
            if !may_look || !self.is_extension(tenant, context, &checked).await? {
                return Err(limited);
            }
        }
        let longer = checked.waiting.map(|waiting| context.with_wait(Duration::from_millis(waiting.wait_ms)));
        let make = |namespace| {
            let acquire = Acquire {
                namespace,
                owner: checked.owner.clone(),
                claims: checked.claims.clone(),
                ttl_ms: checked.ttl_ms,
                transition_ms: checked.terms.transition_ms,
                metadata: checked.terms.metadata.clone(),
                fencing_token: checked.terms.fencing_token,
                requested_expires_at_ns: checked.terms.dlocks_expires_at_ns,
                wait: validate::to_wait(checked.waiting),
                allow_upgrade: checked.terms.allow_upgrade,
                request_id: checked.request_id.clone(),
                // Only the node that leads knows which attempt at its place a call is.
                attempt: 0,
                message: None,
            };
            match checked.waiting {
                Some(waiting) => ShardRequest::Wait(Box::new(acquire), waiting.poll, CancellationToken::new()),
                None => ShardRequest::from(Command::Locks(LocksCommand::Acquire(acquire))),
            }
        };
        let context = longer.as_ref().unwrap_or(context);
        let asked = Timestamp::now();
        let answered = self.call_locks(tenant, checked.namespace, context, make);
        let (reply, asked) = match checked.waiting {
            None => (answered.await?, asked),
            // Whoever is no longer let in waits no longer: dropped, the call gives its place up.
            Some(_) => tokio::select! {
                // How long ago the grant was nobody says. Before the wait there was none.
                reply = answered => (reply?, Timestamp::now()),
                error = AccessWatch::new(self.clone(), caller.clone()).wait_revoked() => {
                    let what = "who calls can't be checked any more, so that the wait is given up; it may have been granted";
                    return Err(as_outcome_unknown(error, what));
                }
            },
        };
        let shown = ViewBuilder::new(checked.namespace, reply.clock_ms, asked);
        let acquired =
            expect_answer!(reply.outcome?, Response::Acquired { outcome, locks } => shown.acquired(outcome, locks));
        let mut answer = acquired?;
        if checked.terms.signed && answer.success {
            let waited = checked.waiting.is_some();
            let grants = self.sign_grants(tenant, context, &checked.owner, &answer.locks, waited).await;
            let what =
                "granted, but what was granted can't be asked about to sign it; acquire again for that, or release";
            answer.signed_grants = Some(grants.map_err(|error| as_outcome_unknown(error, what))?);
        }
        Ok(answer)
    }
}

impl Service {
    /// Whether the owner has all of it already, so that its holds would only last longer.
    async fn is_extension(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        checked: &CheckedAcquire<'_>,
    ) -> ApiResult<bool> {
        let make = |namespace| {
            let (owner, claims) = (checked.owner.clone(), checked.claims.clone());
            ShardRequest::from(Query::Holds { namespace, owner, claims })
        };
        let reply = self.call_locks(tenant, checked.namespace, context, make).await?;
        expect_answer!(reply.outcome?, Response::Holds(holds) => holds)
    }
}

fn check_acquire<'a>(
    tenant: TenantContext<'_>,
    namespace: &'a str,
    owner: Owner,
    claims: Vec<Claim>,
    terms: &'a Terms,
) -> ApiResult<CheckedAcquire<'a>> {
    let limits = tenant.limits();
    tenant.check_namespace("namespace", namespace)?;
    let ttl_ms = validate::hold_ms(&owner, terms, limits, wall_now())?;
    let waiting = validate::wait_options(terms, limits)?;
    validate::transition_ms(terms.transition_ms, limits)?;
    validate::metadata(&terms.metadata, limits)?;
    validate::combination(terms, claims.len())?;
    Ok(CheckedAcquire { namespace, owner, claims, ttl_ms, waiting, request_id: None, terms })
}

/// An error that comes after the locks were granted, or may have been: the caller must not hear that nothing was done.
fn as_outcome_unknown(error: ApiError, what: &str) -> ApiError {
    if error.code == Code::Unavailable { ApiError::new(Code::DeadlineExceeded, what) } else { error }
}

/// The one lock of an answer about one lock.
pub(super) fn single_lock(locks: Vec<LockInfo>) -> ApiResult<LockInfo> {
    let mut locks = locks.into_iter();
    match (locks.next(), locks.next()) {
        (Some(lock), None) => Ok(lock),
        _ => Err(ApiError::internal("a shard answered another number of locks than were named")),
    }
}
