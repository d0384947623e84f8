//! Queries that wait: the leader of the shard holds their replies back until they are final.

use std::pin::pin;
use std::time::Duration;

use holdfast_api::{ApiResult, Timestamp};
use holdfast_types::{NamespaceRef, Query, Response};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::access_watch::AccessWatch;
use crate::admission::{DeferredCall, Share};
use crate::auth::TenantContext;
use crate::shard_call::ShardRequest;
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

/// Between two queries whose reply was not final: a replica that was asked who leads answers at once.
const REPEAT_DELAY: Duration = Duration::from_millis(100);

impl Service {
    /// Counts a wait until it ends, however often the shard is queried.
    pub(super) fn count_deferred(&self, tenant: TenantContext<'_>, wait_ms: u64) -> ApiResult<Option<DeferredCall>> {
        let held = || self.inner.deferred_calls.acquire_deferred_query(Share::from(tenant.account));
        (wait_ms > 0).then(held).transpose()
    }

    /// Repeats a query until its answer is final, or until that instant; returns the last answer, and what shows it.
    /// `make` gets how many milliseconds the reply may be held back, and `read` extracts the answer. The wait ends when
    /// the caller loses access.
    pub(super) async fn query_until<'a, T>(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        (namespace, until): (&'a str, Instant),
        make: impl Fn(NamespaceRef, u64) -> Query,
        read: fn(Response) -> ApiResult<T>,
        is_final: fn(&T) -> bool,
    ) -> ApiResult<(T, ViewBuilder<'a>)> {
        let tenant = caller.tenant()?;
        let left = until.saturating_duration_since(Instant::now());
        let context = &context.with_wait(left);
        let mut answered = pin!(async {
            loop {
                let request = |namespace| deferrable(until, |wait_ms| make(namespace, wait_ms));
                let reply = self.call_locks(tenant, namespace, context, request).await?;
                let answer = read(reply.outcome?)?;
                if is_final(&answer) || Instant::now() >= until {
                    // The leader may have held the reply back for long: instants count from its arrival.
                    return Ok((answer, ViewBuilder::new(namespace, reply.clock_ms, Timestamp::now())));
                }
                sleep(REPEAT_DELAY.min(until.saturating_duration_since(Instant::now()))).await;
            }
        });
        if left.is_zero() {
            return answered.await;
        }
        tokio::select! {
            answer = &mut answered => answer,
            error = AccessWatch::new(self.clone(), caller.clone()).wait_revoked() => Err(error),
        }
    }
}

/// Returns a query whose reply may be held back until an instant; `make` gets for how many milliseconds.
fn deferrable(until: Instant, make: impl FnOnce(u64) -> Query) -> ShardRequest {
    let left = until.saturating_duration_since(Instant::now());
    let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let query = make(wait_ms);
    if wait_ms == 0 {
        return ShardRequest::from(query);
    }
    ShardRequest::DeferredQuery(Box::new(query), until, CancellationToken::new())
}
