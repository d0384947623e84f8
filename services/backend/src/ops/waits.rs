//! Waiting requests and their blockers.

use holdfast_api::{ApiResult, ListWaits, Page, ReasonInfo, ResourceInfo, Timestamp, WaitInfo, page_token, validate};
use holdfast_types::{
    AwaitView, ConditionQuery, Kind, Kinds, NamespaceRef, PermitQuery, PermitWaitView, Query, QueuedRequestView,
    Reason, Response, Scopes, WaitId,
};

use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::{ViewBuilder, reason_only, session_of};
use crate::{AuthContext, CallContext, Service};

/// Pages are short because the shard that also grants locks evaluates each request again for the response.
const MAX_PAGE_WAITS: u32 = 100;

/// Waiting requests of some kinds, in the order in which they began to wait.
struct WaitPage {
    waits: Vec<(WaitId, WaitInfo)>,
    /// The last request that it covers, shown or not, unless it covers all.
    end: Option<WaitId>,
}

impl Service {
    /// Lists the waiting requests of a namespace, in the order in which they began to wait.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_waits(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListWaits,
    ) -> ApiResult<Page<WaitInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let ListWaits { namespace, kinds, page } = request;
        tenant.check_namespace("namespace", &namespace)?;
        let limit = validate::page_size(page.page_size)?.min(MAX_PAGE_WAITS);
        let kinds = validate::kinds(&kinds)?;
        let list = format!("waits of {} {namespace:?} {kinds:?}", tenant.account.id);
        let after: Option<WaitId> = page_token::decode(&list, page.page_token.as_deref())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let mut pages = Vec::new();
        if kinds.contains(Kind::Lock) {
            pages.push(self.lock_waits(tenant, context, &namespace, after, limit).await?);
        }
        if kinds.contains(Kind::Semaphore) || kinds.contains(Kind::Pool) {
            pages.push(self.permit_waits(tenant, context, &namespace, kinds, (after, limit)).await?);
        }
        if kinds.contains(Kind::Condition) {
            pages.push(self.awaits(tenant, context, &namespace, after, limit).await?);
        }
        let WaitPage { waits, end } = merge(pages, limit as usize);
        let next_page_token = end.map(|end| page_token::encode(&list, &end));
        Ok(Page { items: waits.into_iter().map(|(_, wait)| wait).collect(), next_page_token })
    }

    async fn lock_waits(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        name: &str,
        after: Option<WaitId>,
        limit: u32,
    ) -> ApiResult<WaitPage> {
        let make = |namespace: NamespaceRef| ShardRequest::from(Query::Queue { namespace, after, limit });
        let (reply, shown) = self.call_and_view(tenant, context, name, make).await?;
        let (waits, more) = expect_answer!(reply.outcome?, Response::Queue { waits, more } => (waits, more))?;
        let waits: Vec<(WaitId, WaitInfo)> =
            waits.into_iter().map(|queued| (queued.wait.wait, lock_wait(&shown, queued))).collect();
        let last = waits.last().map(|(wait, _)| *wait);
        Ok(WaitPage { waits, end: last.filter(|_| more) })
    }

    /// Returns who awaits conditions.
    async fn awaits(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        name: &str,
        after: Option<WaitId>,
        limit: u32,
    ) -> ApiResult<WaitPage> {
        let make = |namespace: NamespaceRef| {
            ShardRequest::from(Query::Condition(ConditionQuery::Waits { namespace, path: None, after, limit }))
        };
        let asked = Timestamp::now();
        let reply = self.call_locks(tenant, name, context, make).await?;
        let shown = ViewBuilder::new(name, reply.clock_ms, asked);
        let (waits, more) = expect_answer!(reply.outcome?, Response::Awaits { waits, more } => (waits, more))?;
        let last = waits.last().map(|awaits| awaits.wait);
        let waits = waits.into_iter().map(|awaits| (awaits.wait, await_info(&shown, awaits))).collect();
        Ok(WaitPage { waits, end: last.filter(|_| more) })
    }

    /// Returns the requests that wait for semaphores or pools, whichever of these the kinds have.
    async fn permit_waits(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        name: &str,
        kinds: Kinds,
        (after, limit): (Option<WaitId>, u32),
    ) -> ApiResult<WaitPage> {
        let make =
            |namespace: NamespaceRef| ShardRequest::from(Query::Permit(PermitQuery::Waits { namespace, after, limit }));
        let (reply, shown) = self.call_and_view(tenant, context, name, make).await?;
        let (waits, more) = expect_answer!(reply.outcome?, Response::PermitWaits { waits, more } => (waits, more))?;
        let last = waits.last().map(|queued| queued.wait);
        let shows = |queued: &PermitWaitView| kinds.contains(queued.kind);
        let waits = waits.into_iter().filter(shows).map(|queued| (queued.wait, permit_wait(&shown, queued))).collect();
        Ok(WaitPage { waits, end: last.filter(|_| more) })
    }
}

/// Merges pages of several kinds in the order in which the requests began to wait.
fn merge(pages: Vec<WaitPage>, limit: usize) -> WaitPage {
    // What comes after the end of a page that is not the last may be preceded by others of its kind.
    let mut end = pages.iter().filter_map(|page| page.end).min();
    let mut waits: Vec<(WaitId, WaitInfo)> = pages.into_iter().flat_map(|page| page.waits).collect();
    waits.retain(|(wait, _)| end.is_none_or(|end| *wait <= end));
    waits.sort_by_key(|(wait, _)| *wait);
    if waits.len() > limit {
        waits.truncate(limit);
        end = waits.last().map(|(wait, _)| *wait);
    }
    WaitPage { waits, end }
}

fn lock_wait(shown: &ViewBuilder<'_>, queued: QueuedRequestView) -> WaitInfo {
    let QueuedRequestView { wait, process_id, since_ms, not_granted } = queued;
    let (session_id, holder) = session_of(wait.owner);
    let (remaining_ms, expires_at) = shown.time_left(wait.ends_at_ms);
    let claims = wait.claims.into_iter();
    WaitInfo {
        process_id,
        session_id,
        holder,
        request_id: wait.request_id,
        resources: claims.map(|claim| ResourceInfo { path: claim.path.0, mode: claim.mode }).collect(),
        upgrade: wait.upgrade,
        waiting_since: Timestamp(since_ms),
        expires_at,
        remaining_ms,
        reason: shown.reason(not_granted),
        kind: None,
        path: None,
        weight: None,
        count: None,
        member: None,
        priority: None,
        condition: None,
    }
}

/// An await has no blockers: anybody may signal.
fn await_info(shown: &ViewBuilder<'_>, awaits: AwaitView) -> WaitInfo {
    let (session_id, holder) = session_of(awaits.owner);
    let (remaining_ms, expires_at) = shown.time_left(awaits.ends_at_ms);
    WaitInfo {
        process_id: awaits.process_id,
        session_id,
        holder,
        request_id: awaits.request_id,
        resources: Vec::new(),
        upgrade: false,
        waiting_since: Timestamp(awaits.since_ms),
        expires_at,
        remaining_ms,
        reason: ReasonInfo { queue_position: Some(awaits.queue_position), ..reason_only(Reason::Queued) },
        kind: Some(Kind::Condition.name()),
        path: Some(awaits.path.0),
        weight: None,
        count: None,
        member: None,
        priority: None,
        condition: Some(awaits.condition),
    }
}

fn permit_wait(shown: &ViewBuilder<'_>, queued: PermitWaitView) -> WaitInfo {
    let (session_id, holder) = session_of(queued.owner);
    let (remaining_ms, expires_at) = shown.time_left(queued.ends_at_ms);
    let code = if queued.queue_position == 0 { Reason::Exhausted } else { Reason::Queued };
    let queue_position = Some(queued.queue_position);
    WaitInfo {
        process_id: queued.process_id,
        session_id,
        holder,
        request_id: Some(queued.request_id),
        resources: Vec::new(),
        upgrade: false,
        waiting_since: Timestamp(queued.since_ms),
        expires_at,
        remaining_ms,
        reason: ReasonInfo { queue_position, ..reason_only(code) },
        kind: Some(queued.kind.name()),
        path: Some(queued.path.0),
        weight: Some(queued.weight).filter(|_| queued.kind == Kind::Semaphore),
        count: Some(queued.weight).filter(|_| queued.kind == Kind::Pool && queued.member.is_none()),
        member: queued.member,
        priority: Some(queued.priority),
        condition: None,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Owner, Path};

    use super::*;

    fn queued(number: u64) -> PermitWaitView {
        PermitWaitView {
            wait: WaitId(number),
            kind: Kind::Semaphore,
            path: Path::flat("s"),
            owner: Owner::Process("p".into()),
            process_id: "p".into(),
            request_id: "r".into(),
            weight: 1,
            member: None,
            priority: 0,
            queue_position: 0,
            attempt: 1,
            since_ms: 0,
            ends_at_ms: None,
        }
    }

    fn page(waits: &[u64], more: bool) -> WaitPage {
        let shown = ViewBuilder::new("ns", 0, Timestamp(0));
        let wait = |number: &u64| (WaitId(*number), permit_wait(&shown, queued(*number)));
        WaitPage { waits: waits.iter().map(wait).collect(), end: waits.last().filter(|_| more).copied().map(WaitId) }
    }

    #[test]
    fn a_wait_says_what_it_is_for_as_its_request_does() {
        let shown = |kind, member: Option<&str>| {
            let shown = ViewBuilder::new("ns", 0, Timestamp(0));
            let member = member.map(str::to_owned);
            let wait = permit_wait(&shown, PermitWaitView { kind, weight: 3, member, queue_position: 2, ..queued(7) });
            assert_eq!(wait.reason.queue_position, Some(2));
            (wait.weight, wait.count, wait.member)
        };
        assert_eq!(shown(Kind::Semaphore, None), (Some(3), None, None));
        assert_eq!(shown(Kind::Pool, None), (None, Some(3), None));
        assert_eq!(shown(Kind::Pool, Some("a")), (None, None, Some("a".to_owned())));
    }

    #[test]
    fn pages_of_several_kinds_become_one_that_leaves_nothing_out() {
        let merged = |pages, limit| {
            let WaitPage { waits, end } = merge(pages, limit);
            (waits.into_iter().map(|(wait, _)| wait.0).collect::<Vec<_>>(), end.map(|end| end.0))
        };
        assert_eq!(merged(vec![page(&[1, 4], false), page(&[2, 3], false)], 4), (vec![1, 2, 3, 4], None));
        assert_eq!(merged(vec![page(&[1, 4], false), page(&[2, 3], false)], 3), (vec![1, 2, 3], Some(3)));
        assert_eq!(merged(vec![page(&[1, 5], true), page(&[2, 9], false)], 9), (vec![1, 2, 5], Some(5)));
        assert_eq!(merged(vec![page(&[], false), page(&[2], false)], 9), (vec![2], None));
        assert_eq!(merged(Vec::new(), 9), (vec![], None));
        let hidden = WaitPage { waits: Vec::new(), end: Some(WaitId(7)) };
        assert_eq!(merged(vec![hidden, page(&[2, 9], false)], 9), (vec![2], Some(7)));
    }
}
