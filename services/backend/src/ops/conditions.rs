//! Conditions of locks: an owner gives a lock up until another one says that something has changed.

use std::pin::pin;
use std::time::Duration;

use holdfast_api::{
    ApiResult, AwaitAnswer, AwaitCondition, ConditionInfo, ListThings, Page, SignalAnswer, SignalCondition, Timestamp,
    page_token, validate,
};
use holdfast_types::{
    AwaitCondition as AwaitCommand, Command, ConditionCommand, ConditionQuery, LocksCommand, Path, Query, Reason,
    Response, Scopes, SignalCondition as SignalCommand, Wait,
};
use tokio_util::sync::CancellationToken;

use super::acquire::{as_outcome_unknown, single_lock};
use crate::access_watch::AccessWatch;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::{ViewBuilder, reason_only};
use crate::{AuthContext, CallContext, Service};

/// What a caller is told whose access can't be checked while it waits.
const WAIT_ABANDONED: &str =
    "who calls can't be checked any more, so that the wait is given up; the lock may have been granted again";

impl Service {
    /// Gives a lock up, awaits a condition of it, and waits for the lock again. An owner that does not hold it gets a
    /// refusal, which is a response and not an error.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a hold that several requests claim, `QUOTA_EXCEEDED`, `SESSION_NOT_FOUND`,
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn await_condition(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: AwaitCondition,
    ) -> ApiResult<AwaitAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let (limits, namespace) = (tenant.limits(), request.lock.namespace.as_str());
        let path = validate::existing_lock(&request.lock.name, limits)?;
        let owner = validate::owner(&request.owner)?;
        validate::condition(&request.condition)?;
        let ttl_ms = validate::permit_ttl_ms(&owner, request.ttl_ms, limits)?;
        validate::transition_ms(request.transition_ms.unwrap_or_default(), limits)?;
        request.metadata.as_ref().map_or(Ok(()), |metadata| validate::metadata(metadata, limits))?;
        let (relock_ms, options) =
            validate::await_times((request.wait_ms, request.relock_ms), request.poll_ms, limits)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let awaits = AwaitCommand {
                namespace,
                path: path.clone(),
                owner: owner.clone(),
                fencing_token: request.fencing_token,
                condition: request.condition.clone(),
                wait: Wait::For(options.wait_ms),
                relock_ms: Some(relock_ms),
                ttl_ms,
                transition_ms: request.transition_ms,
                metadata: request.metadata.clone(),
                // Only the leader's node knows which attempt of the await this call is.
                attempt: 0,
                abandoned: Vec::new(),
                message: None,
            };
            ShardRequest::Await(Box::new(awaits), options.poll, CancellationToken::new())
        };
        let context = context.with_wait(Duration::from_millis(options.wait_ms.saturating_add(relock_ms)));
        let answered = pin!(self.call_and_view(tenant, &context, namespace, make));
        // A caller without access stops waiting: dropping the call cancels its await.
        let (reply, _) = tokio::select! {
            answer = answered => answer?,
            error = AccessWatch::new(self.clone(), caller.clone()).wait_revoked() => {
                return Err(as_outcome_unknown(error, WAIT_ABANDONED));
            }
        };
        // The time of the grant is unknown; before the wait there was none.
        let shown = ViewBuilder::new(namespace, reply.clock_ms, Timestamp::now());
        let (outcome, woken, locks) =
            expect_answer!(reply.outcome?, Response::Awaited { outcome, woken, locks } => (outcome, woken, locks))?;
        let answer = shown.acquired(outcome, locks);
        let woken = woken.filter(|_| answer.success);
        let (success, fencing_token, reason) = (answer.success, answer.fencing_token, answer.reason);
        Ok(AwaitAnswer { success, woken, fencing_token, reason, lock: single_lock(answer.locks)? })
    }

    /// Wakes the owner that has awaited a condition longest, or all. An owner that does not hold the lock gets a
    /// refusal, which is a response and not an error.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, `QUOTA_EXCEEDED` for a signal with an id that would wake nobody,
    /// besides those of every call.
    pub async fn signal_condition(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: SignalCondition,
    ) -> ApiResult<SignalAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::existing_lock(&request.lock.name, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        validate::condition(&request.condition)?;
        if let Some(signal_id) = &request.signal_id {
            validate::name("signal_id", signal_id)?;
        }
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let signal = SignalCommand {
                namespace,
                path: path.clone(),
                owner: owner.clone(),
                condition: request.condition.clone(),
                all: request.all,
                fencing_token: request.fencing_token,
                signal_id: request.signal_id.clone(),
                message: None,
            };
            let command = Command::Locks(LocksCommand::Condition(ConditionCommand::Signal(signal)));
            match request.signal_id {
                Some(_) => ShardRequest::from(command),
                // A second execution could wake another one.
                None => ShardRequest::once(command),
            }
        };
        let (reply, shown) = self.call_and_view(tenant, context, &request.lock.namespace, make).await?;
        let (success, signalled, awaiting, locks) = expect_answer!(reply.outcome?,
            Response::Signalled { success, signalled, awaiting, locks } => (success, signalled, awaiting, locks))?;
        let lock = single_lock(shown.locks(locks))?;
        let reason = (!success).then(|| reason_only(Reason::NotHeld));
        let given = |number: u64| success.then_some(number);
        Ok(SignalAnswer { success, signalled: given(signalled), awaiting: given(awaiting), reason, lock })
    }

    /// Lists the awaited conditions of locks at and below a path, in order of path and name.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_conditions(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListThings,
    ) -> ApiResult<Page<ConditionInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("conditions of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<(Path, String)> = page_token::decode(&list, request.page.page_token.as_deref())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let (prefix, after) = (prefix.clone(), after.clone());
            ShardRequest::from(Query::Condition(ConditionQuery::List { namespace, prefix, after, limit }))
        };
        let (reply, _) = self.call_and_view(tenant, context, &request.namespace, make).await?;
        let (conditions, next) =
            expect_answer!(reply.outcome?, Response::Conditions { conditions, next } => (conditions, next))?;
        let next_page_token = next.map(|last| page_token::encode(&list, &last));
        let items = conditions.into_iter().map(|condition| ConditionInfo {
            path: condition.path.0,
            condition: condition.condition,
            awaiting: condition.awaiting,
            oldest_since: Timestamp(condition.oldest_since_ms),
        });
        Ok(Page { items: items.collect(), next_page_token })
    }
}
