//! Watchers of one namespace, and their cost to its shard.

use std::sync::atomic::Ordering;

use holdfast_api::{Code, WatchEvents};
use holdfast_types::Mode;
use tokio::sync::mpsc;

use super::core_node::{TestGateway, context};
use super::tests::{acquire, demo_world};
use crate::events::MAX_WATCHERS;
use crate::*;

/// A watcher of a prefix that has received all events so far.
async fn watcher(world: &TestGateway, tenant: &AuthContext, prefix: Vec<String>) -> EventStream {
    let request = WatchEvents { namespace: "demo".into(), prefix, ..WatchEvents::default() };
    let mut stream = world.service.watch_events(tenant, &context(), request).await.unwrap();
    assert_eq!(stream.next().await.unwrap().events, [], "it watches from now on");
    stream
}

async fn take(world: &TestGateway, tenant: &AuthContext, lock: &str) {
    world.service.acquire_lock(tenant, &context(), acquire(lock, "p", Mode::Write)).await.unwrap();
}

/// The revisions of the next page with events.
async fn next_revisions(watcher: &mut EventStream) -> Vec<u64> {
    watcher.next().await.unwrap().events.iter().map(|event| event.revision).collect()
}

#[tokio::test]
async fn a_thousand_watchers_of_different_prefixes_make_one_subscription() {
    let (world, tenant) = demo_world().await;
    let subscriptions = world.count_event_subscriptions();
    let mut watchers = Vec::new();
    for number in 0..MAX_WATCHERS {
        watchers.push(watcher(&world, &tenant, vec![format!("l{number}")]).await);
    }
    for number in 0..MAX_WATCHERS {
        take(&world, &tenant, &format!("l{number}")).await;
    }
    let mut last = 0;
    for watcher in &mut watchers {
        let seen = next_revisions(watcher).await;
        assert!(seen.len() == 1 && seen[0] > last, "each is told of its own lock: {seen:?} after {last}");
        last = seen[0];
    }
    assert_eq!(subscriptions.load(Ordering::SeqCst), 1);

    // The subscription ends with the last watcher, and the next one makes another.
    let (cancels, mut cancelled) = mpsc::unbounded_channel();
    world.node.on_cancelled(move |id| {
        let _ = cancels.send(id);
        None
    });
    drop(watchers);
    cancelled.recv().await.unwrap();
    let mut next = watcher(&world, &tenant, Vec::new()).await;
    take(&world, &tenant, "new").await;
    assert_eq!(next_revisions(&mut next).await, [last + 1]);
    assert_eq!(subscriptions.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_watcher_that_is_behind_reads_the_history_and_then_what_the_others_read() {
    let (world, tenant) = demo_world().await;
    take(&world, &tenant, "first").await;
    let mut early = watcher(&world, &tenant, Vec::new()).await;
    for number in 0..600 {
        take(&world, &tenant, &format!("l{number}")).await;
    }
    let request = WatchEvents { namespace: "demo".into(), from_revision: Some(0), ..WatchEvents::default() };
    let mut late = world.service.watch_events(&tenant, &context(), request).await.unwrap();
    let mut all = Vec::new();
    while all.len() < 601 {
        all.extend(next_revisions(&mut late).await);
    }
    assert!(all.is_sorted_by(|before, after| before + 1 == *after));
    let mut seen = Vec::new();
    while seen.len() < 600 {
        seen.extend(next_revisions(&mut early).await);
    }
    assert_eq!(seen, all[1..]);
    take(&world, &tenant, "last").await;
    for watcher in [&mut early, &mut late] {
        assert_eq!(next_revisions(watcher).await, [all[600] + 1]);
    }
}

#[tokio::test]
async fn watchers_of_a_namespace_that_is_deleted_are_told_so() {
    let (world, tenant) = demo_world().await;
    let mut watchers = [watcher(&world, &tenant, Vec::new()).await, watcher(&world, &tenant, vec!["l".into()]).await];
    world.service.delete_namespace(&tenant, &context(), "demo", None).await.unwrap();
    for watcher in &mut watchers {
        let error = loop {
            match watcher.next().await {
                Ok(page) => assert!(page.events.is_empty()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code, Code::NamespaceNotFound);
    }
}
