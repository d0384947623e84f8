//! Watchers of one namespace, and their cost to its shard.

use std::sync::atomic::Ordering;

use holdfast_api::WatchEvents;
use holdfast_types::Mode;

use super::core_node::{TestGateway, context};
use super::tests::{acquire, demo_tenant};
use crate::*;

/// A watcher that has received all events so far.
async fn watcher(world: &TestGateway, tenant: &AuthContext) -> EventStream {
    let request = WatchEvents { namespace: "demo".into(), ..WatchEvents::default() };
    let mut stream = world.service.watch_events(tenant, &context(), request).await.unwrap();
    assert_eq!(stream.next().await.unwrap().events, [], "it watches from now on");
    stream
}

#[tokio::test]
async fn watchers_at_the_same_place_ask_once_and_are_told_the_same() {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    let mut watchers = [watcher(&world, &tenant).await, watcher(&world, &tenant).await];
    world.service.acquire_lock(&tenant, &context(), acquire("l", "p", Mode::Write)).await.unwrap();
    let questions = world.count_event_queries();
    let mut pages = Vec::new();
    for watcher in &mut watchers {
        pages.push(watcher.next().await.unwrap());
    }
    assert_eq!(questions.load(Ordering::SeqCst), 1);
    assert_eq!(pages[0], pages[1]);
    assert_eq!(pages[0].events.len(), 1);
    // Later events need a new query.
    world.service.acquire_lock(&tenant, &context(), acquire("m", "p", Mode::Write)).await.unwrap();
    for watcher in &mut watchers {
        assert_eq!(watcher.next().await.unwrap().events[0].revision, pages[0].events[0].revision + 1);
    }
}
