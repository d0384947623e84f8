//! Acquires one lock or a set, immediately or after a wait, and extends holds.

use std::pin::pin;
use std::time::Duration;

use holdfast_api::validate::WaitOptions;
use holdfast_api::{
    AcquireAnswer, AcquireLock, AcquireLocks, AcquireLocksAnswer, ApiError, ApiResult, Code, Lock, Terms, Timestamp,
    validate, wall_now,
};
use holdfast_types::{Acquire, Claim, Command, LocksCommand, NamespaceRef, Owner, Query, Response, Scopes};
use tokio_util::sync::CancellationToken;

use crate::access_watch::AccessWatch;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

/// A validated acquire.
struct CheckedAcquire<'a> {
    namespace: &'a str,
    owner: Owner,
    claims: Vec<Claim>,
    ttl_ms: Option<u64>,
    at_least_ms: u64,
    waiting: Option<WaitOptions>,
    request_id: Option<String>,
    terms: &'a Terms,
}

impl Service {
    /// Acquires a lock, waits for it, or extends a hold. A refused request is a response, not an error.
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
            self.acquire(caller, context, &checked).await?;
        let signed_grant = signed_grants.and_then(|grants| grants.into_iter().next());
        Ok(AcquireAnswer { success, fencing_token, reason, signed_grant, lock: single_lock(locks)? })
    }

    /// Acquires several paths at once, all of them or none.
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
        self.acquire(caller, context, &checked).await
    }

    async fn acquire(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        checked: &CheckedAcquire<'_>,
    ) -> ApiResult<AcquireLocksAnswer> {
        let tenant = caller.tenant()?;
        if checked.terms.fencing_token.is_none() {
            let holds = |namespace| {
                let (owner, claims) = (checked.owner.clone(), checked.claims.clone());
                Query::Holds { namespace, owner, claims }
            };
            self.admit_unless_extension(tenant, context, checked.namespace, holds).await?;
        }
        let longer = checked.waiting.map(|waiting| context.with_wait(Duration::from_millis(waiting.wait_ms)));
        let make = |namespace| to_shard_request(checked, namespace);
        let context = longer.as_ref().unwrap_or(context);
        let asked = Timestamp::now();
        // Pinned once, and what follows in few calls is boxed: a call that waits has this future for minutes.
        let answered = pin!(self.call_locks(tenant, checked.namespace, context, make));
        let (reply, asked) = match checked.waiting {
            None => (answered.await?, asked),
            // A caller without access stops waiting: dropping the call cancels its queued request.
            Some(_) => tokio::select! {
                // The time of the grant is unknown; before the wait there was none.
                reply = answered => (reply?, Timestamp::now()),
                error = AccessWatch::new(self.clone(), caller.clone()).wait_revoked() => {
                    let what = "the caller's access can't be checked now; the wait ended, but may have been granted";
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
            let grants = Box::pin(self.sign_grants(tenant, context, &checked.owner, &answer.locks, waited)).await;
            let what = "granted, but the grant can't be signed now; acquire again to have it signed, or release";
            answer.signed_grants = Some(grants.map_err(|error| as_outcome_unknown(error, what))?);
        }
        Ok(answer)
    }
}

fn to_shard_request(checked: &CheckedAcquire<'_>, namespace: NamespaceRef) -> ShardRequest {
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
        // Only the leader's node knows which attempt of the queued request this call is.
        attempt: 0,
        message: None,
    };
    match checked.waiting {
        Some(waiting) => {
            let acquire = Box::new((acquire, checked.at_least_ms));
            ShardRequest::Wait(acquire, waiting.poll, CancellationToken::new())
        }
        None => {
            let command = LocksCommand::acquire(acquire, Vec::new(), checked.at_least_ms);
            ShardRequest::from(Command::Locks(command))
        }
    }
}

impl Service {
    /// Admits a call at the account's rate; beyond the rate, only if it merely extends what its owner has, which the
    /// owner would lose otherwise. `query` finds that out at the leader: it must return [`Response::Holds`].
    pub(super) async fn admit_unless_extension(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &str,
        query: impl Fn(NamespaceRef) -> Query,
    ) -> ApiResult<()> {
        let Err(limited) = self.inner.rates.admit(tenant.account, context.body_bytes()) else { return Ok(()) };
        // The query must cost less than the rejected call.
        if !self.inner.rates.admit_extension_check(tenant.account) {
            return Err(limited);
        }
        let make = |namespace| ShardRequest::from(query(namespace));
        let reply = Box::pin(self.call_locks(tenant, namespace, context, make)).await?;
        if expect_answer!(reply.outcome?, Response::Holds(holds) => holds)? { Ok(()) } else { Err(limited) }
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
    // An extension by token may repeat what was within the limits when the hold was granted.
    let at_least_ms = match terms.fencing_token {
        Some(_) => validate::repeated_at_least_ms(terms.at_least_ms, limits),
        None => validate::at_least_ms(terms.at_least_ms, limits).map(|()| terms.at_least_ms)?,
    };
    validate::metadata(&terms.metadata, limits)?;
    validate::combination(terms, claims.len())?;
    Ok(CheckedAcquire { namespace, owner, claims, ttl_ms, at_least_ms, waiting, request_id: None, terms })
}

/// Converts an error that occurs after the locks were or may have been granted: the caller must not conclude that
/// nothing changed.
pub(super) fn as_outcome_unknown(error: ApiError, what: &str) -> ApiError {
    if error.code == Code::Unavailable { ApiError::new(Code::DeadlineExceeded, what) } else { error }
}

/// Returns the one lock of a response about one lock.
pub(super) fn single_lock(locks: Vec<Lock>) -> ApiResult<Lock> {
    let mut locks = locks.into_iter();
    match (locks.next(), locks.next()) {
        (Some(lock), None) => Ok(lock),
        _ => Err(ApiError::internal("a shard returned another number of locks than the request named")),
    }
}
