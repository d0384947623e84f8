//! Waiting requests and their blockers.

use holdfast_api::{ApiResult, Page, PageRequest, ResourceInfo, Timestamp, WaitInfo, mode_name, page_token, validate};
use holdfast_types::{Mode, Query, QueuedRequestView, Response, Scopes, WaitId};

use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::{ViewBuilder, session_of};
use crate::{AuthContext, CallContext, Service};

/// Pages are short because the shard that also grants locks evaluates each request again for the response.
const MAX_PAGE_WAITS: u32 = 100;

impl Service {
    /// Lists the waiting requests of a namespace, in the order in which they began to wait.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_waits(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        page: PageRequest,
    ) -> ApiResult<Page<WaitInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        tenant.check_namespace("namespace", namespace)?;
        let limit = validate::page_size(page.page_size)?.min(MAX_PAGE_WAITS);
        let list = format!("waits of {} {namespace:?}", tenant.account.id);
        let after: Option<WaitId> = page_token::decode(&list, page.page_token.as_deref())?;
        self.inner.rates.admit(tenant.account)?;
        let make = |namespace| ShardRequest::from(Query::Queue { namespace, after, limit });
        let asked = Timestamp::now();
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        let shown = ViewBuilder::new(namespace, reply.clock_ms, asked);
        let (waits, more) = expect_answer!(reply.outcome?, Response::Queue { waits, more } => (waits, more))?;
        let last = waits.last().map(|queued| queued.wait.wait);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, &last));
        Ok(Page { items: waits.into_iter().map(|queued| wait_info(&shown, queued)).collect(), next_page_token })
    }
}

fn wait_info(shown: &ViewBuilder<'_>, queued: QueuedRequestView) -> WaitInfo {
    let QueuedRequestView { wait, process_id, since_ms, not_granted } = queued;
    let (session_id, holder) = session_of(wait.owner);
    let (remaining_ms, expires_at) = shown.time_left(wait.ends_at_ms);
    let resource = |path, mode: Mode| ResourceInfo { path, mode: mode_name(mode) };
    WaitInfo {
        process_id,
        session_id,
        holder,
        request_id: wait.request_id,
        resources: wait.claims.into_iter().map(|claim| resource(claim.path.0, claim.mode)).collect(),
        upgrade: wait.upgrade,
        waiting_since: Timestamp(since_ms),
        expires_at,
        remaining_ms,
        reason: shown.reason(not_granted),
    }
}
