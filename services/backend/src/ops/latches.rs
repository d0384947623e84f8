//! Latches: counts of what is done, and waits until all is.

use std::time::Duration;

use holdfast_api::{
    ApiResult, CountDown, CountDownAnswer, CreateLatch, CreateLatchAnswer, GetLatch, LatchDone, LatchInfo, LatchName,
    LatchOutcome, ListThings, Page, SetLatchTotal, SetLatchTotalAnswer, WaitForLatch, WaitForLatchAnswer, page_token,
    validate,
};
use holdfast_routing::RetryPolicy;
use holdfast_types::{
    Command, CountDown as CountDownCommand, CreateLatch as CreateLatchCommand, JobCursor, Jobs, LatchCommand,
    LatchQuery, LatchRef, LatchView, LocksCommand, NamespaceRef, Path, Query, Reply, Response, Scopes,
};
use tokio::time::Instant;

use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Creates a latch. A repeat with the same parameters finds it.
    ///
    /// # Errors
    /// `ALREADY_EXISTS` for one with other parameters, `QUOTA_EXCEEDED`, `NAMESPACE_NOT_FOUND`, besides those of every
    /// call.
    pub async fn create_latch(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: CreateLatch,
    ) -> ApiResult<CreateLatchAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::new_thing(&request.thing.name, tenant.limits())?;
        let (expires_in_ms, retain_ms) = validate::latch_times(request.expires_in_ms, request.retain_ms)?;
        let description = request.description.unwrap_or_default();
        validate::description(&description, tenant.limits())?;
        validate::metadata(&request.metadata, tenant.limits())?;
        let make = |namespace| {
            LatchCommand::Create(CreateLatchCommand {
                namespace,
                path: path.clone(),
                total: request.total,
                ids: request.ids,
                expires_in_ms,
                retain_ms,
                description: description.clone(),
                metadata: request.metadata.clone(),
            })
        };
        let (reply, shown) = self.latch_command(tenant, context, &request.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::LatchCreated { latch, is_new }
            => CreateLatchAnswer { latch: shown.latch(latch), created: is_new })
    }

    /// Reports to a latch what is done; each id or index counts once.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `INVALID_ARGUMENT` for indexes that the latch does not have, `NAMESPACE_NOT_FOUND`,
    /// besides those of every call.
    pub async fn count_down(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: CountDown,
    ) -> ApiResult<CountDownAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::existing_thing(&request.latch.thing.name, tenant.limits())?;
        let jobs = validate::jobs(request.ids.as_deref(), request.ranges.as_deref())?;
        let make = |namespace| {
            let latch = LatchRef { namespace, path: path.clone(), id: request.latch.id };
            LatchCommand::CountDown(CountDownCommand { latch, jobs: jobs.clone() })
        };
        let (reply, shown) = self.latch_command(tenant, context, &request.latch.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::CountedDown { counted, latch }
            => CountDownAnswer { counted, latch: shown.latch(latch) })
    }

    /// Changes the total of an active latch.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `INVALID_ARGUMENT` for a total below what is done, `QUOTA_EXCEEDED`,
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn set_latch_total(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: SetLatchTotal,
    ) -> ApiResult<SetLatchTotalAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::existing_thing(&request.latch.thing.name, tenant.limits())?;
        let make = |namespace| {
            let latch = LatchRef { namespace, path: path.clone(), id: request.latch.id };
            LatchCommand::SetTotal { latch, total: request.total, if_total: request.if_total }
        };
        let (reply, shown) = self.latch_command(tenant, context, &request.latch.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::LatchTotalSet { success, latch }
            => SetLatchTotalAnswer { success, latch: shown.latch(latch) })
    }

    /// Deletes a latch; one that does not exist is no error.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn delete_latch(&self, caller: &AuthContext, context: &CallContext, request: LatchName) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", &request.thing.namespace)?;
        let path = validate::existing_thing(&request.thing.name, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let latch = LatchRef { namespace, path: path.clone(), id: request.id };
            let command = Command::Locks(LocksCommand::Latch(LatchCommand::Delete(latch)));
            // A second execution could delete a latch that was made in between.
            ShardRequest::Command(Box::new(command), RetryPolicy::Never)
        };
        let reply = self.call_locks(tenant, &request.thing.namespace, context, make).await?;
        expect_answer!(reply.outcome?, Response::Done => ())
    }

    /// Returns a latch and a page of what is done, in order.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_latch(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: GetLatch,
    ) -> ApiResult<LatchDone> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let LatchName { thing, id } = &request.latch;
        let limit = validate::page_size(request.page.page_size)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        let list = format!("done of {} {:?} {:?}", tenant.account.id, thing.namespace, path.0);
        let after: Option<JobCursor> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| {
            let latch = LatchRef { namespace, path: path.clone(), id: *id };
            LatchQuery::Get { latch, after: after.clone(), limit }
        };
        let (reply, shown) = self.latch_query(tenant, context, &thing.namespace, make).await?;
        let (latch, done, more) =
            expect_answer!(reply.outcome?, Response::LatchJobs { latch, done, more } => (latch, done, more))?;
        let next_page_token = cursor(&done).filter(|_| more).map(|last| page_token::encode(&list, &last));
        Ok(LatchDone { latch: shown.latch(latch), done, next_page_token })
    }

    /// Lists the latches at and below a path, in order of path.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_latches(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListThings,
    ) -> ApiResult<Page<LatchInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("latches of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<Path> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| LatchQuery::List { namespace, prefix: prefix.clone(), after: after.clone(), limit };
        let (reply, shown) = self.latch_query(tenant, context, &request.namespace, make).await?;
        let (latches, more) = expect_answer!(reply.outcome?, Response::Latches { latches, more } => (latches, more))?;
        let last = latches.last().map(|latch| &latch.path);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        Ok(Page { items: latches.into_iter().map(|latch| shown.latch(latch)).collect(), next_page_token })
    }

    /// Waits until a latch is final, or for a time. The wait is no state of the shard: its leader holds the reply back.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, also for a latch that is deleted meanwhile, `QUOTA_EXCEEDED` with too many waits,
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn wait_for_latch(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: WaitForLatch,
    ) -> ApiResult<WaitForLatchAnswer> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let LatchName { thing, id } = &request.latch;
        tenant.check_namespace("namespace", &thing.namespace)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        validate::wait_ms(request.wait_ms, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let until = Instant::now() + Duration::from_millis(request.wait_ms);
        let _held = self.count_deferred(tenant, request.wait_ms)?;
        let make = |namespace, wait_ms| {
            let latch = LatchRef { namespace, path: path.clone(), id: *id };
            Query::Latch(LatchQuery::Wait { latch, wait_ms })
        };
        let read = |response: Response| expect_answer!(response, Response::Latch(latch) => latch);
        let is_final = |latch: &LatchView| latch.status.is_final();
        let within = (thing.namespace.as_str(), until);
        let (latch, shown) = self.query_until(caller, context, within, make, read, is_final).await?;
        let outcome = LatchOutcome::from(latch.status);
        Ok(WaitForLatchAnswer { outcome, latch: shown.latch(latch) })
    }

    async fn latch_command<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> LatchCommand,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        let make = |namespace| ShardRequest::from(Command::Locks(LocksCommand::Latch(make(namespace))));
        self.ask_about_latches(tenant, context, namespace, make).await
    }

    async fn latch_query<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> LatchQuery,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        let make = |namespace| ShardRequest::from(Query::Latch(make(namespace)));
        self.ask_about_latches(tenant, context, namespace, make).await
    }

    async fn ask_about_latches<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> ShardRequest,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        tenant.check_namespace("namespace", namespace)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.call_and_view(tenant, context, namespace, make).await
    }
}

/// Returns where the page after this one begins; `None` for an empty page.
fn cursor(done: &Jobs) -> Option<JobCursor> {
    match done {
        Jobs::Named(ids) => ids.last().cloned().map(JobCursor::Named),
        Jobs::Indexed(ranges) => ranges.last().map(|(_, to)| JobCursor::Indexed(*to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_what_is_done_goes_on_after_its_last_one() {
        assert_eq!(cursor(&Jobs::Named(vec!["a".into(), "b".into()])), Some(JobCursor::Named("b".into())));
        assert_eq!(cursor(&Jobs::Indexed(vec![(0, 4), (7, 9)])), Some(JobCursor::Indexed(9)));
        assert_eq!(cursor(&Jobs::Indexed(Vec::new())), None);
    }
}
