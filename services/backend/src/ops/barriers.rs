//! Barriers: parties that meet and go on together, in one generation after the other.

use std::time::Duration;

use holdfast_api::{
    ApiResult, ArriveAtBarrier, BarrierAnswerInfo, BarrierArrivals, BarrierInfo, ConfigureBarrier, GenerationInfo,
    LeaveBarrier, ListThings, Page, ThingName, Timestamp, WaitAtBarrier, page_token, validate,
};
use holdfast_routing::RetryPolicy;
use holdfast_types::{
    ArriveAtBarrier as ArriveCommand, BarrierAnswer, BarrierCommand, BarrierOutcome, BarrierQuery, BarrierView,
    Command, ConfigureBarrier as ConfigureCommand, LeaveBarrier as LeaveCommand, LocksCommand, NamespaceRef, Owner,
    Path, Query, Reply, Response, Revision, Scopes, WaitAtBarrier as WaitQuery,
};
use tokio::time::Instant;

use super::acquire::as_outcome_unknown;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

/// What a party is told whose wait ends without an answer.
const WAIT_ABANDONED: &str = "the party has arrived or left, but the end of the generation can't be told now";

/// What is asked about a generation.
struct Question<'a> {
    namespace: &'a str,
    path: Path,
    generation: Revision,
    /// The owner whose arrival it is about.
    owner: Option<Owner>,
    /// Whether it is about the end of a double barrier.
    leaves: bool,
}

impl Service {
    /// Makes a barrier or changes it; nobody's arrival ends.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn configure_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ConfigureBarrier,
    ) -> ApiResult<BarrierInfo> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::new_thing(&request.thing.name, tenant.limits())?;
        validate::parties(request.parties)?;
        let retain_ms = validate::barrier_retain_ms(request.retain_ms)?;
        let description = request.description.unwrap_or_default();
        validate::description(&description, tenant.limits())?;
        validate::metadata(&request.metadata, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let configure = ConfigureCommand {
                namespace,
                path: path.clone(),
                parties: request.parties,
                double: request.double,
                on_loss: request.on_loss,
                retain_ms,
                description: description.clone(),
                metadata: request.metadata.clone(),
            };
            let command = Command::Locks(LocksCommand::Barrier(BarrierCommand::Configure(configure)));
            ShardRequest::from(caller.audited(context, command))
        };
        let (reply, shown) = self.call_and_view(tenant, context, &request.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Barrier(barrier) => shown.barrier(barrier))
    }

    /// Arrives at a barrier, and waits for the end of the generation. A wait that ends first leaves the arrival.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND` for a barrier that does not exist, if the request says not how many meet, or names a
    /// generation; `INVALID_ARGUMENT` for other figures than its own, `QUOTA_EXCEEDED`, also with too many waits,
    /// `SESSION_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn arrive_at_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ArriveAtBarrier,
    ) -> ApiResult<BarrierAnswerInfo> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let namespace = &request.thing.namespace;
        tenant.check_namespace("namespace", namespace)?;
        let path = validate::new_thing(&request.thing.name, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        request.parties.map_or(Ok(()), validate::parties)?;
        let ttl_ms = validate::permit_ttl_ms(&owner, request.ttl_ms, tenant.limits())?;
        validate::metadata(&request.metadata, tenant.limits())?;
        validate::wait_ms(request.wait_ms, tenant.limits())?;
        let has_arrived = |namespace| {
            let (path, owner) = (path.clone(), owner.clone());
            Query::Barrier(BarrierQuery::HasArrived { namespace, path, owner })
        };
        self.admit_unless_extension(tenant, context, namespace, has_arrived).await?;
        // Before it arrives: whoever may not wait has not arrived either.
        let _held = self.count_deferred(tenant, request.wait_ms)?;
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        // Without a generation, a second execution could arrive in the next one.
        let policy = if request.generation.is_some() { RetryPolicy::LaterTerm } else { RetryPolicy::Never };
        let make = |namespace| {
            let command = Command::Locks(LocksCommand::Barrier(BarrierCommand::Arrive(ArriveCommand {
                namespace,
                path: path.clone(),
                owner: owner.clone(),
                generation: request.generation,
                parties: request.parties,
                double: request.double,
                ttl_ms,
                metadata: request.metadata.clone(),
                request_id: None,
                message: None,
            })));
            ShardRequest::Command(Box::new(command), policy)
        };
        let answer = self.answer_at_barrier(tenant, context, namespace, make).await?;
        let (owner, generation, leaves) = (Some(owner), answer.generation, false);
        let question = Question { namespace, path, generation, owner, leaves };
        self.wait_unless_final(caller, context, answer, question, until).await
    }

    /// Waits for the end of a generation, without arriving.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `INVALID_ARGUMENT` for a generation that has not begun, `QUOTA_EXCEEDED` with too many
    /// waits, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn wait_at_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: WaitAtBarrier,
    ) -> ApiResult<BarrierAnswerInfo> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let WaitAtBarrier { thing, generation, wait_ms } = request;
        tenant.check_namespace("namespace", &thing.namespace)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        validate::wait_ms(wait_ms, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let _held = self.count_deferred(tenant, wait_ms)?;
        let until = Instant::now() + Duration::from_millis(wait_ms);
        let question = Question { namespace: &thing.namespace, path, generation, owner: None, leaves: false };
        self.wait_at(caller, context, question, until).await
    }

    /// Ends an arrival before the trip, or leaves a double barrier and waits until all have. The rate limit never
    /// applies.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `INVALID_ARGUMENT` for a generation that has not begun, `QUOTA_EXCEEDED` with too many
    /// waits, `SESSION_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn leave_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: LeaveBarrier,
    ) -> ApiResult<BarrierAnswerInfo> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let LeaveBarrier { thing, owner, generation, wait_ms } = request;
        let namespace = &thing.namespace;
        tenant.check_namespace("namespace", namespace)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        let owner = validate::owner(&owner)?;
        validate::wait_ms(wait_ms, tenant.limits())?;
        let _held = self.count_deferred(tenant, wait_ms)?;
        let until = Instant::now() + Duration::from_millis(wait_ms);
        let make = |namespace| {
            let (path, owner) = (path.clone(), owner.clone());
            let leave = LeaveCommand { namespace, path, owner, generation, message: None };
            ShardRequest::from(Command::Locks(LocksCommand::Barrier(BarrierCommand::Leave(leave))))
        };
        let answer = self.answer_at_barrier(tenant, context, namespace, make).await?;
        let question = Question { namespace, path, generation, owner: Some(owner), leaves: true };
        self.wait_unless_final(caller, context, answer, question, until).await
    }

    /// Returns a barrier, who has come, and how the latest generations ended.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        thing: &ThingName,
    ) -> ApiResult<BarrierArrivals> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        let make = |namespace| BarrierQuery::Get { namespace, path: path.clone() };
        let (reply, shown) = self.barrier_query(tenant, context, &thing.namespace, make).await?;
        let (barrier, arrivals, outcomes) = expect_answer!(reply.outcome?,
            Response::BarrierArrivals { barrier, arrivals, outcomes } => (barrier, arrivals, outcomes))?;
        let generations = outcomes.into_iter().map(|ended| GenerationInfo {
            generation: ended.generation,
            outcome: ended.end,
            parties: ended.parties,
            ended_at: Timestamp(ended.at_ms),
            lost: ended.lost,
        });
        Ok(BarrierArrivals {
            barrier: shown.barrier(barrier),
            arrivals: arrivals.into_iter().map(|arrival| shown.arrival(arrival)).collect(),
            generations: generations.collect(),
        })
    }

    /// Ends all arrivals, and deletes the barrier. Those who were in it are told so.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn delete_barrier(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        thing: &ThingName,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let delete = BarrierCommand::Delete { namespace, path: path.clone() };
            let command = caller.audited(context, Command::Locks(LocksCommand::Barrier(delete)));
            // A second execution could delete a barrier that was made in between.
            ShardRequest::Command(Box::new(command), RetryPolicy::Never)
        };
        let (reply, _) = self.call_and_view(tenant, context, &thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Done => ())
    }

    /// Lists the barriers at and below a path, in order of path.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_barriers(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListThings,
    ) -> ApiResult<Page<BarrierInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("barriers of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<Path> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| BarrierQuery::List { namespace, prefix: prefix.clone(), after: after.clone(), limit };
        let (reply, shown) = self.barrier_query(tenant, context, &request.namespace, make).await?;
        let (barriers, next) =
            expect_answer!(reply.outcome?, Response::Barriers { barriers, next } => (barriers, next))?;
        let next_page_token = next.map(|last| page_token::encode(&list, &last));
        Ok(Page { items: barriers.into_iter().map(|barrier| shown.barrier(barrier)).collect(), next_page_token })
    }

    /// Sends an arrival or its end.
    async fn answer_at_barrier(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &str,
        make: impl Fn(NamespaceRef) -> ShardRequest,
    ) -> ApiResult<BarrierAnswerInfo> {
        let (reply, shown) = self.call_and_view(tenant, context, namespace, make).await?;
        expect_answer!(reply.outcome?, Response::AtBarrier { answer, barrier } => shown.at_barrier(answer, barrier))
    }

    /// Returns an answer that is final, or waits for one.
    async fn wait_unless_final(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        answer: BarrierAnswerInfo,
        question: Question<'_>,
        until: Instant,
    ) -> ApiResult<BarrierAnswerInfo> {
        if answer.outcome != BarrierOutcome::Waiting || Instant::now() >= until {
            return Ok(answer);
        }
        // It has arrived, or left, whatever becomes of the wait.
        let waited = self.wait_at(caller, context, question, until).await;
        waited.map_err(|error| as_outcome_unknown(error, WAIT_ABANDONED))
    }

    /// Queries the generation until its outcome is final, or until that instant.
    async fn wait_at(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        question: Question<'_>,
        until: Instant,
    ) -> ApiResult<BarrierAnswerInfo> {
        let make = |namespace, wait_ms| {
            Query::Barrier(BarrierQuery::Wait(WaitQuery {
                namespace,
                path: question.path.clone(),
                generation: question.generation,
                owner: question.owner.clone(),
                leaves: question.leaves,
                wait_ms,
            }))
        };
        let read = |told: Response| expect_answer!(told, Response::AtBarrier { answer, barrier } => (answer, barrier));
        let is_final = |(answer, _): &(BarrierAnswer, BarrierView)| answer.outcome.is_final();
        let within = (question.namespace, until);
        let ((answer, barrier), shown) = self.query_until(caller, context, within, make, read, is_final).await?;
        Ok(shown.at_barrier(answer, barrier))
    }

    async fn barrier_query<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> BarrierQuery,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| ShardRequest::from(Query::Barrier(make(namespace)));
        self.call_and_view(tenant, context, namespace, make).await
    }
}
