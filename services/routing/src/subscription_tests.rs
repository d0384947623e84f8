//! Subscriptions, with nodes on real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use holdfast_cluster::Application;
use holdfast_proto::internal::{Lagged, Update as EncodedUpdate, answer::Outcome};
use holdfast_testkit::fake_node::{Action, done, not_leader};
use holdfast_testkit::subscriptions::{rejected, subscription_of};
use holdfast_types::{
    AccountChange, AccountId, CommandError, Effect, Incarnation, NamespaceRef, Page, Query, Revision, SessionEnd,
    SessionUpdate, Topic, codec,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::fake_cluster::{FakeCluster, fast_options};
use crate::{RouteError, StartGate, StartOutcome, Subscription, SubscriptionError};

/// How long a subscription looks for a leader.
const MAX_WAIT: Duration = Duration::from_secs(30);

fn accounts(cluster: &FakeCluster, max_wait: Duration) -> Subscription<AccountChange> {
    cluster.router.subscribe(Application::Accounts, 0, Topic::AccountChanges, Some(1), max_wait)
}

/// Makes this replica lead and publish; the others name it.
fn elect(cluster: &FakeCluster, replica: u64, term: u64) {
    for (node, id) in cluster.nodes.iter().zip(1..) {
        node.on_call(move |call| match subscription_of(call) {
            _ if id != replica => not_leader(replica, term),
            Some(_) => Action::Publish,
            None => done(),
        });
    }
}

/// Waits until a node has answered a query: the leader is known, and what the node sent before has arrived.
async fn query(cluster: &FakeCluster) {
    let (query, deadline) = (Query::Account { id: AccountId(1) }, Instant::now() + Duration::from_secs(10));
    cluster.router.query(Application::Accounts, 0, &query, deadline).await.unwrap();
}

/// The page of all changes up to `last`: the change of an account for each revision.
fn page(from: Option<Revision>, last: Revision) -> Page {
    let from = from.unwrap();
    let changes: Vec<_> = (from..=last).map(|revision| AccountChange::Account(AccountId(revision))).collect();
    Page::new(&changes, from.max(last + 1))
}

/// Lets the first replica publish the changes up to the revision in the counter.
fn publish_changes(cluster: &FakeCluster) -> Arc<AtomicUsize> {
    let last = Arc::new(AtomicUsize::new(0));
    let published = last.clone();
    cluster.nodes[0].on_page(move |_, subscribe| Ok(page(subscribe.from, published.load(Ordering::SeqCst) as u64)));
    last
}

fn revisions(changes: &[AccountChange]) -> Vec<u64> {
    let revision = |change: &AccountChange| match change {
        AccountChange::Account(AccountId(revision)) => *revision,
        AccountChange::ApiKey(_) | AccountChange::KeyOfAccount { .. } => panic!("only accounts change"),
    };
    changes.iter().map(revision).collect()
}

#[tokio::test]
async fn a_subscription_continues_at_the_next_leader_after_the_last_page() {
    let cluster = FakeCluster::start(fast_options()).await;
    let (last, leader) = (Arc::new(AtomicUsize::new(2)), Arc::new(AtomicUsize::new(1)));
    for (node, id) in cluster.nodes.iter().zip(1..) {
        let (last, leader) = (last.clone(), leader.clone());
        node.on_page(move |_, subscribe| match leader.load(Ordering::SeqCst) == id {
            true => Ok(page(subscribe.from, last.load(Ordering::SeqCst) as u64)),
            false => Err(Outcome::NotLeader(holdfast_proto::internal::NotLeader::default())),
        });
    }
    elect(&cluster, 1, 1);
    let mut changes = accounts(&cluster, MAX_WAIT);
    assert_eq!(revisions(&changes.next().await.unwrap().items), [1, 2]);
    last.store(3, Ordering::SeqCst);
    assert_eq!(revisions(&changes.next().await.unwrap().items), [3]);
    // The leader ends its subscriptions, and another one has the next change.
    elect(&cluster, 2, 2);
    leader.store(2, Ordering::SeqCst);
    last.store(5, Ordering::SeqCst);
    let update = changes.next().await.unwrap();
    assert_eq!((revisions(&update.items), update.next_revision), (vec![4, 5], 6));
}

#[tokio::test]
async fn a_page_is_sent_for_a_credit_only_and_covers_what_changed_before_it() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let last = publish_changes(&cluster);
    let mut changes = accounts(&cluster, MAX_WAIT);
    let first = changes.next().await.unwrap();
    assert_eq!((first.items.len(), first.next_revision), (0, 1), "the first page comes at once");
    for change in 1..=1_000 {
        last.store(change, Ordering::SeqCst);
    }
    assert_eq!(cluster.nodes[0].credits.load(Ordering::SeqCst), 0);
    let second = changes.next().await.unwrap();
    assert_eq!((second.items.len(), second.next_revision), (1_000, 1_001));
    assert_eq!(cluster.nodes[0].credits.load(Ordering::SeqCst), 1);
    // Without changes the page is empty, and not at once.
    let asked_at = Instant::now();
    let empty = changes.next().await.unwrap();
    let heartbeat = Topic::AccountChanges.heartbeat().unwrap();
    assert!(empty.items.is_empty() && asked_at.elapsed() >= heartbeat);
}

#[tokio::test]
async fn a_call_for_the_next_update_that_is_dropped_loses_nothing() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let last = publish_changes(&cluster);
    let mut changes = accounts(&cluster, MAX_WAIT);
    changes.next().await.unwrap();
    for change in 1..=20 {
        for _ in 0..3 {
            drop(timeout(Duration::from_millis(1), changes.next()).await);
        }
        last.store(change, Ordering::SeqCst);
        let seen = revisions(&changes.next().await.unwrap().items);
        assert_eq!(seen.last(), Some(&(change as u64)));
    }
    assert_eq!(cluster.nodes[0].credits.load(Ordering::SeqCst), 20, "one credit a page");
}

#[tokio::test]
async fn a_compacted_history_is_told_and_the_subscriber_says_where_to_continue() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let compacted = CommandError::ChangesCompacted { oldest: 7, now: 9 };
    let told = compacted.clone();
    cluster.nodes[0].on_page(move |_, subscribe| match subscribe.from {
        Some(..8) => Err(rejected(told.clone())),
        from => Ok(page(from, 10)),
    });
    let mut changes = accounts(&cluster, MAX_WAIT);
    assert_eq!(changes.next().await.unwrap_err(), SubscriptionError::Rejected(compacted));
    changes.restart(Some(10));
    assert_eq!(revisions(&changes.next().await.unwrap().items), [10]);
}

#[tokio::test]
async fn the_first_poll_sends_the_subscription_to_a_known_leader() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    query(&cluster).await;
    let subscribed = Arc::new(AtomicBool::new(false));
    let seen = subscribed.clone();
    cluster.nodes[0].on_call(move |call| match subscription_of(call).map(|subscribe| subscribe.topic) {
        Some(Topic::Session { .. }) => {
            seen.store(true, Ordering::SeqCst);
            Action::Silent
        }
        _ => done(),
    });
    let mut updates = session(&cluster);
    assert!(updates.next().now_or_never().is_none());
    query(&cluster).await;
    assert!(subscribed.load(Ordering::SeqCst), "the query was sent later");
}

#[tokio::test]
async fn every_start_but_the_first_goes_through_the_gate_and_is_tried_again_without_a_turn() {
    let cluster = FakeCluster::start(fast_options()).await;
    publish_changes(&cluster);
    elect(&cluster, 1, 1);
    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let gate: StartGate = Arc::new(move |start| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => async { StartOutcome::without_permit("too many start") }.boxed(),
        _ => start,
    });
    let mut changes = accounts(&cluster, MAX_WAIT).with_gate(gate);
    changes.next().await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 0);
    changes.restart(Some(1));
    changes.next().await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_dropped_subscription_ends_at_the_node() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let (cancels, mut cancelled) = mpsc::unbounded_channel();
    cluster.nodes[0].on_cancelled(move |id| {
        let _ = cancels.send(id);
        None
    });
    query(&cluster).await;
    let mut changes = accounts(&cluster, MAX_WAIT);
    changes.next().await.unwrap();
    assert!(cancelled.try_recv().is_err());
    drop(changes);
    assert!(cancelled.recv().await.is_some());
}

#[tokio::test]
async fn a_leader_that_is_not_found_is_told_in_the_end() {
    let cluster = FakeCluster::start(fast_options()).await;
    for node in &cluster.nodes {
        node.on_call(|_| not_leader(0, 0));
    }
    let mut changes = accounts(&cluster, Duration::from_secs(2));
    let error = changes.next().await.unwrap_err();
    assert!(matches!(error, SubscriptionError::Unreachable(RouteError::Unavailable { .. })), "{error}");
    elect(&cluster, 3, 1);
    changes.next().await.unwrap();
}

fn ended() -> Effect {
    let namespace = NamespaceRef { account: AccountId(1), name: "demo".into(), incarnation: Incarnation(2) };
    Effect::SessionEnded { namespace, number: 3, session_id: "se_1".into(), reason: SessionEnd::Closed }
}

fn session(cluster: &FakeCluster) -> Subscription<SessionUpdate> {
    let Effect::SessionEnded { namespace, session_id, .. } = ended() else { panic!("it is one") };
    let topic = Topic::Session { namespace, session_id, epoch: 3 };
    cluster.router.subscribe(Application::Accounts, 0, topic, None, MAX_WAIT)
}

fn update(items: &[SessionUpdate]) -> Outcome {
    Outcome::Update(EncodedUpdate { next_revision: 0, items: codec::encode(&items).into() })
}

#[tokio::test]
async fn updates_of_a_session_need_no_credit_and_begin_anew_after_a_slow_reader_was_cut_off() {
    let cluster = FakeCluster::start(fast_options()).await;
    let sent = SessionUpdate { clock_ms: 11, effect: ended() };
    let (pushed, was_cut_off) = (sent.clone(), Arc::new(AtomicBool::new(false)));
    let subscribed = Arc::new(Mutex::new(Vec::new()));
    let seen = subscribed.clone();
    elect(&cluster, 1, 1);
    query(&cluster).await;
    cluster.nodes[0].on_call(move |call| {
        seen.lock().push(subscription_of(call).unwrap().from);
        let mut outcomes = vec![update(&[]), update(std::slice::from_ref(&pushed))];
        if !was_cut_off.swap(true, Ordering::SeqCst) {
            outcomes.push(Outcome::Lagged(Lagged {}));
        }
        Action::Sequence(outcomes, 0)
    });
    let mut updates = session(&cluster);
    for _ in 0..2 {
        assert_eq!(updates.next().await.unwrap().items, [], "another leader, or the same one anew");
        assert_eq!(updates.next().await.unwrap().items, std::slice::from_ref(&sent));
    }
    assert_eq!(cluster.nodes[0].credits.load(Ordering::SeqCst), 0);
    assert!(subscribed.lock().iter().all(Option::is_none), "there is no history to continue from");
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_cut_off_and_misses_no_beginning() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let sent = SessionUpdate { clock_ms: 11, effect: ended() };
    query(&cluster).await;
    cluster.nodes[0].on_call(move |call| {
        let Some(_) = subscription_of(call) else { return done() };
        let pushed = std::iter::repeat_n(update(std::slice::from_ref(&sent)), 2_000);
        Action::Sequence(std::iter::once(update(&[])).chain(pushed).collect(), 0)
    });
    let mut updates = session(&cluster);
    assert!(updates.next().await.unwrap().items.is_empty());
    query(&cluster).await;
    let mut read = 0;
    while !updates.next().await.unwrap().items.is_empty() {
        read += 1;
    }
    assert!(read < 2_000, "{read} updates were buffered");
}
