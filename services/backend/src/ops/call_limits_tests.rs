//! Calls of an account that are counted at a gateway.

use std::time::Duration;

use holdfast_api::*;
use holdfast_types::{Mode, Query};
use tokio::time::Instant;

use super::core_node::{TestGateway, context};
use super::tests::{acquire, code, demo_world, make_namespace, release, wait_until};
use crate::*;

/// A tenant with a namespace `demo` and these limits.
pub(super) async fn limited_tenant(world: &TestGateway, limits: LimitsPatch) -> AuthContext {
    let operator = world.operator().await;
    let account = world.account("small@example.com").await;
    let update = UpdateAccount { limits: Some(limits), ..UpdateAccount::default() };
    world.service.update_account(&operator, &context(), &account, update).await.unwrap();
    let tenant = world.caller(&account, CreateApiKey::default()).await;
    make_namespace(world, &tenant, "demo").await.unwrap();
    tenant
}

async fn watch(world: &TestGateway, tenant: &AuthContext) -> ApiResult<EventStream> {
    let request = WatchEvents { namespace: "demo".into(), ..WatchEvents::default() };
    world.service.watch_events(tenant, &context(), request).await
}

#[tokio::test]
async fn held_calls_beyond_the_limit_are_refused_and_no_other_kind_of_call_is() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_held_calls: Some(2), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    let mut watchers = vec![watch(&world, &tenant).await.unwrap(), watch(&world, &tenant).await.unwrap()];
    let refused = watch(&world, &tenant).await.err().unwrap();
    assert_eq!((refused.code, refused.retry_after_seconds()), (Code::RateLimited, Some(1)));
    assert_eq!(refused.ids, [("limit", "max_held_calls".to_owned()), ("max", "2".to_owned())]);
    let mut waiting = acquire("l", "p", Mode::Write);
    waiting.terms.wait_ms = 1_000;
    assert_eq!(code(world.service.acquire_lock(&tenant, &context(), waiting).await), Code::RateLimited);
    // What is not held goes on, and so do others.
    assert!(world.service.acquire_lock(&tenant, &context(), acquire("l", "p", Mode::Write)).await.unwrap().success);
    assert!(world.service.release_lock(&tenant, &context(), release("l", "p", None)).await.unwrap().released);
    let other = world.tenant("other@example.com").await;
    make_namespace(&world, &other, "demo").await.unwrap();
    let _others = watch(&world, &other).await.unwrap();
    watchers.pop();
    wait_until(async || watch(&world, &tenant).await.is_ok()).await;
}

#[tokio::test]
async fn an_account_with_one_open_call_reads_its_usage_and_its_audit_log() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_open_calls: Some(1), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    let usage = world.service.usage(&tenant, &context(), None).await.unwrap();
    assert_eq!(usage.namespaces.iter().map(|namespace| namespace.name.as_str()).collect::<Vec<_>>(), ["demo"]);
    let audit = world.service.list_audit(&tenant, &context(), ListAudit::default()).await.unwrap();
    assert!(!audit.items.is_empty());
}

#[tokio::test]
async fn calls_to_a_shard_that_does_not_answer_stay_open_and_releases_are_not_refused_for_them() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_open_calls: Some(1), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    world.service.acquire_lock(&tenant, &context(), acquire("l", "p", Mode::Write)).await.unwrap();
    world.drop_queries(|query| !matches!(query, Query::Namespace { .. }));
    let (service, reader) = (world.service.clone(), tenant.clone());
    // It asks until its call is the open one.
    let stuck = tokio::spawn(async move {
        let read = async || service.get_lock(&reader, &context(), "demo", &"l".into()).await;
        while read().await.is_err_and(|error| error.code == Code::RateLimited) {
            tokio::task::yield_now().await;
        }
    });
    let take = async || world.service.acquire_lock(&tenant, &context(), acquire("m", "p", Mode::Write)).await;
    wait_until(async || {
        let refused = take().await.err();
        refused.is_some_and(|error| error.ids.contains(&("limit", "max_open_calls".to_owned())))
    })
    .await;
    // Neither is the look-up of the namespace, which this gateway may have to make for one.
    let account = tenant.tenant().unwrap().account.id;
    world.service.inner.directory.invalidate_namespace(account, "demo");
    assert!(world.service.release_lock(&tenant, &context(), release("l", "p", None)).await.unwrap().released);
    stuck.abort();
    wait_until(async || take().await.is_ok()).await;
}

#[tokio::test]
async fn of_large_pages_one_at_a_time_is_read_and_written() {
    let (world, tenant) = demo_world().await;
    let list = |rows| {
        let page = PageRequest { page_size: Some(rows), page_token: None };
        ListLocks { namespace: "demo".into(), prefix: Vec::new(), page }
    };
    let writing = context();
    world.service.list_locks(&tenant, &writing, list(1_000)).await.unwrap();
    // Its response is not written yet.
    let soon = || CallContext { deadline: Instant::now() + Duration::from_millis(200), ..context() };
    assert_eq!(code(world.service.list_locks(&tenant, &soon(), list(101)).await), Code::Unavailable);
    world.service.list_locks(&tenant, &context(), list(100)).await.unwrap();
    world.service.list_locks(&tenant, &writing, list(1_000)).await.unwrap();
    drop(writing);
    world.service.list_locks(&tenant, &context(), list(101)).await.unwrap();
}

#[tokio::test]
async fn a_large_page_does_not_wait_for_a_shard_that_does_not_answer() {
    let (world, tenant) = demo_world().await;
    world.drop_queries(|query| matches!(query, Query::AccountUsage { .. }));
    let (service, reader) = (world.service.clone(), tenant.clone());
    let stuck = tokio::spawn(async move { service.usage(&reader, &context(), None).await });
    let heavy_work = || {
        let used = world.service.inner.heavy_admission.used(tenant.share().sharer);
        used.into_iter().map(|(_, used)| used).sum::<u64>()
    };
    wait_until(async || heavy_work() > 0).await;
    let page = PageRequest { page_size: Some(1_000), page_token: None };
    let list = ListLocks { namespace: "demo".into(), prefix: Vec::new(), page };
    world.service.list_locks(&tenant, &context(), list).await.unwrap();
    assert!(!stuck.is_finished());
    stuck.abort();
}
