//! Deferred replies, with nodes on real sockets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_cluster::{Application, ShardMap};
use holdfast_proto::internal::{Answer, Call, answer, call};
use holdfast_testkit::fake_node::{Action, config_of, deferred, not_leader};
use holdfast_types::{
    AccountId, Acquire, AcquireOutcome, Claim, Command, Incarnation, LocksCommand, Metadata, Mode, NamespaceRef, Owner,
    Path, Query, Reply, Response as CoreAnswer, Wait, codec,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::call_load::CallKind;
use crate::fake_cluster::{FakeCluster, fast_options};

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(1), name: "demo".into(), incarnation: Incarnation(2) }
}

fn acquire() -> Acquire {
    Acquire {
        namespace: namespace(),
        owner: Owner::Process("a".into()),
        claims: vec![Claim { path: Path::flat("one"), mode: Mode::Write }],
        ttl_ms: Some(1_000),
        transition_ms: 0,
        metadata: Metadata::new(),
        fencing_token: None,
        requested_expires_at_ns: None,
        wait: Wait::For(60_000),
        allow_upgrade: false,
        request_id: None,
        attempt: 0,
        message: None,
    }
}

fn granted() -> Reply {
    let outcome = AcquireOutcome::Granted { fencing_token: 5 };
    Reply { outcome: Ok(CoreAnswer::Acquired { outcome, locks: vec![] }), clock_ms: 7, awaits: None }
}

fn reply(reply: &Reply) -> answer::Outcome {
    answer::Outcome::Reply(codec::encode(reply).into())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Makes the first node lead the group of the locks shard in term 1; it runs `act` on calls addressed to the term.
fn elect(cluster: &FakeCluster, act: impl Fn(&Call) -> Action + Send + Sync + 'static) {
    let map = ShardMap::new(config_of(&cluster.nodes)).unwrap();
    let replicas = &map.group_of(map.shard_for(Application::Locks, 0)).replicas;
    let leader = replicas.iter().find(|replica| replica.node_id == "nd_1").unwrap().id;
    for node in &cluster.nodes[1..] {
        node.on_call(move |_| not_leader(leader, 1));
    }
    cluster.nodes[0].on_call(move |call| {
        let is_command = matches!(call.body, Some(call::Body::Command(_)));
        if is_command && call.term != 1 { not_leader(leader, 1) } else { act(call) }
    });
}

fn command_of(call: &Call) -> Option<LocksCommand> {
    let Some(call::Body::Command(bytes)) = &call.body else { return None };
    match codec::decode(bytes) {
        Ok(Command::Locks(command)) => Some(command),
        _ => None,
    }
}

#[tokio::test]
async fn an_answer_that_is_held_back_is_waited_for_however_long_the_leader_takes() {
    let options = fast_options();
    let max_without_leader = options.max_without_leader;
    let cluster = FakeCluster::start(options).await;
    let (calls, mut called) = mpsc::unbounded_channel();
    elect(&cluster, move |call| {
        let _ = calls.send(call.max_wait_ms);
        Action::Sequence(vec![deferred()], 0)
    });
    let router = cluster.router.clone();
    let began = Instant::now();
    let deadline = began + 3 * max_without_leader;
    let waiting =
        tokio::spawn(async move { router.acquire(0, (acquire(), 0), None, deadline, CancellationToken::new()).await });
    assert!(called.recv().await.unwrap() > 0);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(began.elapsed() >= 3 * max_without_leader, "given up after {:?}: {error}", began.elapsed());
    assert_eq!(called.try_recv().ok(), None, "it was sent again");
}

#[tokio::test]
async fn a_wait_whose_connection_ends_is_asked_for_again_in_the_same_term() {
    let cluster = FakeCluster::start(fast_options()).await;
    let times = AtomicUsize::new(0);
    elect(&cluster, move |_| match times.fetch_add(1, Ordering::SeqCst) {
        0 => Action::DeferAndHangUp,
        _ => Action::Sequence(vec![deferred(), reply(&granted())], 9),
    });
    let answered = cluster.router.acquire(0, (acquire(), 0), None, soon(), CancellationToken::new()).await;
    assert_eq!(answered, Ok(granted()));
}

#[tokio::test]
async fn a_wait_that_finds_no_room_looks_for_it_until_its_deadline() {
    let options = fast_options();
    let max_without_leader = options.max_without_leader;
    let cluster = FakeCluster::start(options).await;
    elect(&cluster, |_| Action::Sequence(vec![deferred(), reply(&granted())], 9));
    let to =
        cluster.router.destination(Application::Locks, 0, Some(namespace().account)).with_kind(CallKind::Deferrable);
    let others: Vec<_> = to.route.endpoints().iter().map(|place| FakeCluster::fill(&to, place.replica)).collect();
    let router = cluster.router.clone();
    let mut waiting =
        tokio::spawn(async move { router.acquire(0, (acquire(), 0), None, soon(), CancellationToken::new()).await });
    assert!(timeout(2 * max_without_leader, &mut waiting).await.is_err(), "it has given its place up");
    drop(others);
    assert_eq!(waiting.await.unwrap(), Ok(granted()));
}

#[tokio::test]
async fn what_is_granted_to_a_caller_that_has_gone_is_given_back_by_its_attempt() {
    let cluster = FakeCluster::start(fast_options()).await;
    let (calls, mut called) = mpsc::unbounded_channel();
    let (cancels, mut cancelled) = mpsc::unbounded_channel();
    elect(&cluster, move |call| match command_of(call) {
        Some(LocksCommand::Cancel(cancel)) => {
            let _ = cancels.send(cancel);
            Action::Answer(reply(&Reply { outcome: Ok(CoreAnswer::Done), clock_ms: 8, awaits: None }))
        }
        _ => {
            let _ = calls.send(call.id);
            Action::Sequence(vec![deferred()], 0)
        }
    });
    let (given_up, mut told) = mpsc::unbounded_channel();
    cluster.nodes[0].on_cancelled(move |id| {
        let _ = given_up.send(id);
        // The grant was faster.
        Some(Answer { id, outcome: Some(reply(&granted())), attempt: 42, rules: 1 })
    });
    let router = cluster.router.clone();
    let waiting =
        tokio::spawn(async move { router.acquire(0, (acquire(), 0), None, soon(), CancellationToken::new()).await });
    let id = called.recv().await.unwrap();
    waiting.abort();
    assert_eq!(told.recv().await, Some(id));
    let cancel = cancelled.recv().await.unwrap();
    assert_eq!((cancel.attempt, cancel.owner, cancel.claims), (42, acquire().owner, acquire().claims));
}

#[tokio::test]
async fn a_question_whose_connection_ends_is_answered_at_once_by_whoever_leads() {
    let cluster = FakeCluster::start(fast_options()).await;
    let (calls, mut called) = mpsc::unbounded_channel();
    let done = || Reply { outcome: Ok(CoreAnswer::Done), clock_ms: 7, awaits: None };
    elect(&cluster, move |call| {
        let _ = calls.send(call.max_wait_ms);
        if call.max_wait_ms > 0 { Action::DeferAndHangUp } else { Action::Answer(reply(&done())) }
    });
    let (query, is_deferred) = (Query::Usage { namespace: namespace() }, CancellationToken::new());
    // Who leads is known from here on: a replica that is asked for that answers a question at once.
    cluster.router.query(Application::Locks, 0, &query, soon()).await.unwrap();
    while called.try_recv().is_ok() {}
    let asked = cluster.router.deferred_query(Application::Locks, 0, &query, soon(), soon(), is_deferred.clone());
    assert_eq!(asked.await, Ok(done()), "it is not final, and the caller asks again");
    assert!(is_deferred.is_cancelled());
    // Also again, if the connection ended before it was known that the question is held.
    let mut held_for = called.recv().await.unwrap();
    assert!(held_for > 0, "it is a question at first");
    while held_for > 0 {
        assert!(held_for <= 20_000, "{held_for} ms");
        held_for = called.recv().await.expect("who leads is asked with the same query");
    }
}
