//! The retry rules, with nodes on real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_auth::ClusterSecret;
use holdfast_cluster::Application;
use holdfast_testkit::eventually;
use holdfast_testkit::fake_node::{
    Action, FakeNode, ReceivedCall, done, done_reply, leads, not_leader, not_proposed, unknown,
};
use holdfast_types::{AccountId, AccountsCommand, Command, Query, Reply, Rules, codec};
use tokio::time::{Instant, timeout};

use crate::fake_cluster::{FakeCluster, fast_options, router_to};
use crate::{RetryPolicy, RouteError, RoutedReply, RoutingOptions};

fn command() -> Command {
    Command::Accounts(AccountsCommand::Delete { id: AccountId(1) })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

async fn send(cluster: &FakeCluster) -> Result<RoutedReply, RouteError> {
    cluster.router.command(Application::Accounts, 0, &command(), RetryPolicy::LaterTerm, soon()).await
}

async fn query(cluster: &FakeCluster) -> Result<Reply, RouteError> {
    cluster.router.query(Application::Accounts, 0, &Query::Account { id: AccountId(1) }, soon()).await
}

fn command_in(replica: u64, term: u64) -> ReceivedCall {
    ReceivedCall { replica, term, is_command: true }
}

/// Makes all replicas name this leader, which executes its calls.
fn elect(cluster: &FakeCluster, replica: u64, term: u64) {
    for (node, id) in cluster.nodes.iter().zip(1..) {
        if id == replica {
            node.on_call(move |call| leads(call, replica, term));
        } else {
            node.on_call(move |_| not_leader(replica, term));
        }
    }
}

#[tokio::test]
async fn a_command_follows_the_replicas_to_the_leader_and_its_term() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 2, 3);
    let routed = send(&cluster).await.unwrap();
    assert_eq!(routed, RoutedReply { reply: done_reply(), maybe_done_before: false, term: 3 });
    assert_eq!(cluster.nodes[1].addressed(), [command_in(2, 3)]);

    // The leader moves: the old leader names the new one, and the router redirects the command.
    elect(&cluster, 3, 4);
    send(&cluster).await.unwrap();
    assert_eq!(cluster.nodes[1].addressed(), [command_in(2, 3), command_in(2, 3)]);
    assert_eq!(cluster.nodes[2].addressed(), [command_in(3, 4)]);
    let questions: usize = cluster.nodes.iter().map(FakeNode::probe_count).sum();

    // The router remembers the leader: no more probes.
    send(&cluster).await.unwrap();
    assert_eq!(cluster.nodes.iter().map(FakeNode::probe_count).sum::<usize>(), questions);
}

#[tokio::test]
async fn a_command_of_later_rules_is_not_sent_before_the_shard_goes_by_them() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 2, 3);
    let bytes = || Bytes::from(codec::encode(&command()));
    let router = &cluster.router;
    let to = || router.destination(Application::Accounts, 0, None);
    for _ in 0..2 {
        let refused = router.send(to(), bytes(), Rules(3), RetryPolicy::LaterTerm, soon()).await.unwrap_err();
        assert!(matches!(refused, RouteError::Unavailable { .. }), "nothing was done: {refused:?}");
        assert!(refused.to_string().contains("it goes by rules 1, and this needs rules 3"), "{refused}");
    }
    assert_eq!(cluster.nodes[1].addressed(), []);
    // Once the rules are raised the command is sent, and there are no more probes.
    cluster.nodes[1].rules.store(3, Ordering::SeqCst);
    router.send(to(), bytes(), Rules(3), RetryPolicy::LaterTerm, soon()).await.unwrap();
    let questions = cluster.nodes[1].probe_count();
    router.send(to(), bytes(), Rules(3), RetryPolicy::LaterTerm, soon()).await.unwrap();
    assert_eq!(cluster.nodes[1].addressed(), [command_in(2, 3), command_in(2, 3)]);
    assert_eq!(cluster.nodes[1].probe_count(), questions);
}

#[tokio::test]
async fn a_command_of_unknown_outcome_goes_to_a_later_term_only() {
    let cluster = FakeCluster::start(fast_options()).await;
    let elected = Arc::new(AtomicBool::new(false));
    let questions = Arc::new(AtomicUsize::new(0));
    for node in [0, 2] {
        let (elected, questions) = (elected.clone(), questions.clone());
        cluster.nodes[node].on_call(move |_| {
            // The others learn of the new leader only after several probes.
            if questions.fetch_add(1, Ordering::SeqCst) > 10 {
                elected.store(true, Ordering::SeqCst);
            }
            if elected.load(Ordering::SeqCst) { not_leader(2, 2) } else { not_leader(1, 1) }
        });
    }
    let elected_too = elected.clone();
    cluster.nodes[1].on_call(
        move |call| {
            if elected_too.load(Ordering::SeqCst) { leads(call, 2, 2) } else { not_leader(1, 1) }
        },
    );
    cluster.nodes[0].on_call({
        let (elected, questions) = (elected.clone(), questions.clone());
        move |call| match call.term {
            0 if questions.fetch_add(1, Ordering::SeqCst) > 10 => {
                elected.store(true, Ordering::SeqCst);
                not_leader(2, 2)
            }
            0 => not_leader(1, 1),
            _ => unknown(),
        }
    });
    let routed = send(&cluster).await.unwrap();
    assert_eq!(routed, RoutedReply { reply: done_reply(), maybe_done_before: true, term: 2 });
    assert_eq!(cluster.nodes[0].addressed(), [command_in(1, 1)]);
    assert_eq!(cluster.nodes[1].addressed(), [command_in(2, 2)]);
}

#[tokio::test]
async fn without_a_later_term_an_unknown_outcome_is_told_as_such() {
    let cluster = FakeCluster::start(fast_options()).await;
    for node in &cluster.nodes {
        node.on_call(|call| if call.term == 0 { not_leader(1, 1) } else { unknown() });
    }
    let error = send(&cluster).await.unwrap_err();
    assert!(matches!(error, RouteError::OutcomeUnknown { .. }), "{error}");
    assert!(error.to_string().contains("leadership was lost"), "{error}");
    assert_eq!(cluster.nodes[0].addressed(), [command_in(1, 1)]);
}

#[tokio::test]
async fn a_connection_lost_after_sending_is_an_unknown_outcome() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    cluster.nodes[0].on_call(|call| if call.term == 0 { not_leader(1, 1) } else { Action::HangUp });
    let error = send(&cluster).await.unwrap_err();
    assert!(matches!(error, RouteError::OutcomeUnknown { .. }), "{error}");
    assert_eq!(cluster.nodes[0].addressed(), [command_in(1, 1)]);
    let connections = cluster.nodes[0].connections.lock().clone();
    assert!(connections.iter().all(|(caller, _)| caller == "caller"));
    assert!(connections.is_sorted_by(|before, after| before.1 < after.1), "{connections:?}");
}

#[tokio::test]
async fn a_command_that_must_not_be_repeated_is_not() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 2, 2);
    cluster.nodes[1].on_call(|call| if call.term == 0 { not_leader(2, 2) } else { unknown() });
    let sent = cluster.router.command(Application::Accounts, 0, &command(), RetryPolicy::Never, soon()).await;
    assert!(matches!(sent.unwrap_err(), RouteError::OutcomeUnknown { .. }));
    assert_eq!(cluster.nodes[1].addressed(), [command_in(2, 2)]);
}

#[tokio::test]
async fn a_command_that_may_be_done_is_sent_again_once_there_is_room() {
    let options = RoutingOptions { max_without_leader: Duration::from_secs(10), ..fast_options() };
    let cluster = FakeCluster::start(options).await;
    elect(&cluster, 1, 1);
    send(&cluster).await.unwrap();
    // The first leader does not know what became of the command, and the next one has no room.
    elect(&cluster, 2, 2);
    cluster.nodes[0].on_call(|call| if call.term == 0 { not_leader(2, 2) } else { unknown() });
    let to = cluster.router.destination(Application::Accounts, 0, command().account());
    let others = FakeCluster::fill(&to, 2);
    let router = cluster.router.clone();
    let mut sent = tokio::spawn(async move {
        router.command(Application::Accounts, 0, &command(), RetryPolicy::LaterTerm, soon()).await
    });
    while to.route.leader().is_none_or(|leader| leader.term < 2) {
        to.route.wait_for_change(to.route.leader(), Duration::from_millis(10)).await;
    }
    assert!(timeout(Duration::from_millis(100), &mut sent).await.is_err(), "it does not wait for room");
    assert!(cluster.nodes[1].addressed().is_empty());
    drop(others);
    assert!(sent.await.unwrap().unwrap().maybe_done_before);
}

#[tokio::test]
async fn what_was_not_proposed_is_sent_again_in_the_same_term() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let refusals = AtomicUsize::new(0);
    cluster.nodes[0].on_call(move |call| match call.term {
        0 => not_leader(1, 1),
        _ if refusals.fetch_add(1, Ordering::SeqCst) < 3 => not_proposed(),
        _ => done(),
    });
    let routed = send(&cluster).await.unwrap();
    assert!(!routed.maybe_done_before);
    assert_eq!(cluster.nodes[0].addressed(), vec![command_in(1, 1); 4]);
}

#[tokio::test]
async fn nothing_but_definite_refusals_is_unavailable() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    cluster.nodes[0].on_call(|call| if call.term == 0 { not_leader(1, 1) } else { not_proposed() });
    let error = send(&cluster).await.unwrap_err();
    assert!(matches!(error, RouteError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("the queue is full"), "{error}");
}

#[tokio::test]
async fn nodes_that_cannot_be_reached_are_unavailable_well_before_the_deadline() {
    let secret = ClusterSecret::generate().unwrap();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(FakeNode::start(&secret).await);
    }
    // The nodes belong to another cluster, and reject every connection.
    let router = router_to(&nodes, &ClusterSecret::generate().unwrap(), fast_options());
    let cluster = FakeCluster { nodes, router };
    let begun = Instant::now();
    assert!(matches!(send(&cluster).await.unwrap_err(), RouteError::Unavailable { .. }));
    assert!(matches!(query(&cluster).await.unwrap_err(), RouteError::Unavailable { .. }));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_hung_leader_is_left_for_one_of_a_later_term() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    send(&cluster).await.unwrap();
    // The leader hangs without closing its connection; the others elect another one.
    elect(&cluster, 3, 2);
    cluster.nodes[0].on_call(|_| Action::Silent);
    let routed = send(&cluster).await.unwrap();
    assert!(routed.maybe_done_before);
    assert_eq!(cluster.nodes[0].addressed(), [command_in(1, 1), command_in(1, 1)]);
    assert_eq!(cluster.nodes[2].addressed(), [command_in(3, 2)]);
}

#[tokio::test]
async fn a_silent_replica_does_not_hide_whom_the_others_elect_meanwhile() {
    // Long enough that the call would end before the probe of the unresponsive replica.
    let probe_timeout = Duration::from_secs(5);
    let cluster = FakeCluster::start(RoutingOptions { probe_timeout, ..fast_options() }).await;
    let questions = Arc::new(AtomicUsize::new(0));
    for (node, replica) in [(1, 2), (2, 3)] {
        let questions = questions.clone();
        cluster.nodes[node].on_call(move |call| match questions.fetch_add(1, Ordering::SeqCst) {
            0..4 => not_leader(0, 1),
            _ if replica == 2 => leads(call, 2, 2),
            _ => not_leader(2, 2),
        });
    }
    send(&cluster).await.unwrap();
    assert_eq!(cluster.nodes[1].addressed(), [command_in(2, 2)]);
}

#[tokio::test]
async fn a_hung_leader_without_a_quorum_is_given_up_well_before_the_deadline() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    send(&cluster).await.unwrap();
    for node in &cluster.nodes {
        node.on_call(|_| Action::Silent);
    }
    let begun = Instant::now();
    assert!(matches!(send(&cluster).await.unwrap_err(), RouteError::OutcomeUnknown { .. }));
    assert!(matches!(query(&cluster).await.unwrap_err(), RouteError::Unavailable { .. }));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn leaders_that_no_quorum_confirms_do_not_lengthen_a_call() {
    let cluster = FakeCluster::start(fast_options()).await;
    let terms = AtomicU64::new(1);
    // The responding replica names another leader of a later term each time; the others are down.
    cluster.nodes[0].on_call(move |_| {
        let term = terms.fetch_add(1, Ordering::SeqCst);
        not_leader(2 + term % 2, term)
    });
    let begun = Instant::now();
    assert!(matches!(send(&cluster).await.unwrap_err(), RouteError::OutcomeUnknown { .. }));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_slow_leader_that_a_quorum_confirms_is_waited_for() {
    let options = fast_options();
    let max_without_leader = options.max_without_leader;
    let cluster = FakeCluster::start(options).await;
    elect(&cluster, 1, 1);
    cluster.nodes[0].on_call(|call| if call.term == 0 { not_leader(1, 1) } else { Action::Silent });
    let begun = Instant::now();
    let deadline = begun + 3 * max_without_leader;
    let sent = cluster.router.command(Application::Accounts, 0, &command(), RetryPolicy::LaterTerm, deadline).await;
    assert!(matches!(sent.unwrap_err(), RouteError::OutcomeUnknown { .. }));
    assert!(begun.elapsed() >= 3 * max_without_leader, "given up although a quorum confirmed the leader");
    assert_eq!(cluster.nodes[0].addressed(), [command_in(1, 1)]);
}

#[tokio::test]
async fn the_deadline_of_a_call_that_was_never_sent_is_unavailable() {
    let cluster = FakeCluster::start(fast_options()).await;
    let past = Instant::now();
    let sent = cluster.router.command(Application::Accounts, 0, &command(), RetryPolicy::LaterTerm, past).await;
    assert!(matches!(sent.unwrap_err(), RouteError::Unavailable { .. }));
    assert!(cluster.nodes.iter().all(|node| node.addressed().is_empty()));
}

#[tokio::test]
async fn a_query_is_asked_again_whatever_became_of_it() {
    let cluster = FakeCluster::start(fast_options()).await;
    elect(&cluster, 1, 1);
    let attempts = AtomicUsize::new(0);
    cluster.nodes[0].on_call(move |_| match attempts.fetch_add(1, Ordering::SeqCst) {
        0 => unknown(),
        1 => not_proposed(),
        2 => Action::HangUp,
        _ => done(),
    });
    assert_eq!(query(&cluster).await.unwrap(), done_reply());
}

#[tokio::test]
async fn many_calls_at_once_each_get_their_own_answer() {
    let cluster = Arc::new(FakeCluster::start(fast_options()).await);
    elect(&cluster, 2, 1);
    let calls = (0..500).map(|_| {
        let cluster = cluster.clone();
        tokio::spawn(async move { send(&cluster).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert_eq!(cluster.nodes[1].addressed().len(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_of_tasks_that_are_ready_together_go_in_one_frame() {
    let cluster = Arc::new(FakeCluster::start(fast_options()).await);
    elect(&cluster, 1, 1);
    send(&cluster).await.unwrap();
    // The credit for the next config shares the connection, and may take some of the calls with it.
    eventually("the config was read", async || match cluster.nodes[0].config_credits.load(Ordering::SeqCst) {
        0 => Err("its next page was not asked for".to_owned()),
        _ => Ok(()),
    })
    .await;
    // Whatever else the connection has to say wakes it too, so not each burst is together.
    for _ in 0..20 {
        cluster.nodes[0].frames.lock().clear();
        let callers = Arc::clone(&cluster);
        let burst = tokio::spawn(async move {
            let call = |_| {
                let cluster = Arc::clone(&callers);
                tokio::spawn(async move { send(&cluster).await.unwrap() })
            };
            (0..6).map(call).collect::<Vec<_>>()
        });
        for answered in burst.await.unwrap() {
            answered.await.unwrap();
        }
        if *cluster.nodes[0].frames.lock() == [6] {
            return;
        }
    }
    panic!("the calls of no burst went in one frame");
}
