//! Namespaces that are created and deleted during calls that use them.

use holdfast_api::*;
use holdfast_types::{LockState, Mode};

use super::core_node::{TestGateway, context};
use super::tests::{acquire, code, demo_tenant, make_namespace};

#[tokio::test]
async fn a_namespace_made_again_is_found_empty_by_a_gateway_that_remembers_the_old_one() {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    world.service.acquire_lock(&tenant, &context(), acquire("l", "p1", Mode::Write)).await.unwrap();
    let other = world.another_gateway();
    let old = other.get_namespace(&tenant, &context(), "demo").await.unwrap();
    other.delete_namespace(&tenant, &context(), "demo", Some(&old.id)).await.unwrap();
    assert_eq!(code(world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await), Code::NamespaceNotFound);
    make_namespace(&world, &tenant, "demo").await.unwrap();
    let seen = world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap();
    assert_eq!(seen.state, LockState::Unlocked);
    let stale = other.delete_namespace(&tenant, &context(), "demo", Some(&old.id)).await;
    assert_eq!(code(stale), Code::NamespaceNotFound);
}

#[tokio::test]
async fn a_namespace_that_its_locks_shard_has_not_heard_of_is_unavailable() {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    let old = world.service.get_namespace(&tenant, &context(), "demo").await.unwrap();
    world.set_outboxes_paused(true);
    world.service.delete_namespace(&tenant, &context(), "demo", Some(&old.id)).await.unwrap();
    assert_eq!(code(world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await), Code::NamespaceNotFound);
    make_namespace(&world, &tenant, "demo").await.unwrap();
    let watched = || WatchEvents { namespace: "demo".into(), ..WatchEvents::default() };
    let read = world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap_err();
    assert_eq!((read.code, read.retry_after_seconds()), (Code::Unavailable, Some(1)), "{read:?}");
    let acquired = world.service.acquire_lock(&tenant, &context(), acquire("l", "p1", Mode::Write)).await;
    assert_eq!(code(acquired), Code::Unavailable);
    assert_eq!(code(world.service.watch_events(&tenant, &context(), watched()).await), Code::Unavailable);
    world.set_outboxes_paused(false);
    assert!(world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await.is_ok());
    assert!(world.service.watch_events(&tenant, &context(), watched()).await.is_ok());
}
