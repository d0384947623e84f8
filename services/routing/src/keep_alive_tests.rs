//! The leader of all shards is in this process, and answers a call when the test lets it. Time is simulated.

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_auth::{ClusterSecret, ServiceSigner};
use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, Call, StatusAnswer};
use holdfast_rpc::{CallHandler, ReplyHandle};
use holdfast_types::{AccountId, CommandError, Incarnation, NamespaceRef};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use super::*;
use crate::{LocalNode, RoutingOptions, TcpDialer};

type KeepAliveResult = Result<KeepAliveOutcome, RouteError>;

/// Records each session but `gone`, `undecided`, and those of a call with `odd`, which gets an answer of another kind.
struct Leader {
    /// The sessions of each call.
    calls: Mutex<Vec<Vec<String>>>,
    /// Each lets one call be answered.
    permits: Semaphore,
}

fn outcome(session: &SessionKeepAlive) -> KeepAliveOutcome {
    match session.session_id.as_str() {
        "gone" => KeepAliveOutcome::Rejected(CommandError::SessionNotFound("gone".to_owned())),
        "undecided" => KeepAliveOutcome::Undecided,
        _ => recorded(),
    }
}

fn recorded() -> KeepAliveOutcome {
    KeepAliveOutcome::Recorded { remaining_ms: 900 }
}

/// The handler of the node.
struct Calls(Arc<Leader>);

impl CallHandler for Calls {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let leader = Arc::clone(&self.0);
        async move {
            let Some(Body::Query(bytes)) = call.body else { panic!("a bug") };
            let Ok(Query::KeepAlives { sessions }) = codec::decode(&bytes) else { panic!("a bug") };
            let names: Vec<String> = sessions.iter().map(|session| session.session_id.clone()).collect();
            let is_odd = names.iter().any(|name| name == "odd");
            leader.calls.lock().push(names);
            leader.permits.acquire().await.expect("it is not closed").forget();
            let outcomes: Vec<KeepAliveOutcome> = sessions.iter().map(outcome).collect();
            let response = if is_odd { Response::Done } else { Response::KeptAlive(outcomes) };
            let reply = Reply { outcome: Ok(response), clock_ms: 7, awaits: None };
            Answer { id: call.id, outcome: Some(Outcome::Reply(codec::encode(&reply).into())), ..Answer::default() }
        }
        .boxed()
    }

    fn call_deferrable(&self, _: Call, _: ReplyHandle) -> BoxFuture<'static, Option<Answer>> {
        panic!("a bug")
    }

    fn status(&self) -> StatusAnswer {
        StatusAnswer::default()
    }

    fn not_ready(&self) -> Option<String> {
        None
    }
}

/// A router to the leader, which it knows.
struct World {
    router: Router,
    leader: Arc<Leader>,
}

impl World {
    async fn start() -> Self {
        let leader = Arc::new(Leader { calls: Mutex::default(), permits: Semaphore::new(1) });
        let config = ClusterConfig::generate(vec![("nd_1".to_owned(), "127.0.0.1:1".to_owned())], 2, 1);
        let map = ShardMap::new(config.expect("it is valid")).expect("it is valid");
        let signer = ServiceSigner::new(&ClusterSecret::generate().expect("there is randomness"), "test");
        let local = LocalNode { node_id: "nd_1".to_owned(), handler: Arc::new(Calls(Arc::clone(&leader))) };
        let (options, dialer) = (RoutingOptions::default(), Arc::new(TcpDialer));
        let router = Router::start(map, signer, "caller".to_owned(), dialer, options, Some(local));
        let world = Self { router, leader };
        assert_eq!(world.send("first").await.expect("it does not panic"), Ok(recorded()));
        world.leader.calls.lock().clear();
        world
    }

    /// Sends a keep-alive for a session of the first shard.
    fn send(&self, session_id: &str) -> JoinHandle<KeepAliveResult> {
        self.send_to(0, session_id, Duration::from_secs(10))
    }

    fn send_to(&self, key: u32, session_id: &str, within: Duration) -> JoinHandle<KeepAliveResult> {
        let (router, session) = (self.router.clone(), session(key, session_id));
        tokio::spawn(async move { router.keep_alive(session, Instant::now() + within).await })
    }

    /// Lets everything happen that needs no time, and returns the calls so far.
    async fn calls(&self) -> Vec<Vec<String>> {
        for _ in 0..100 {
            yield_now().await;
        }
        self.leader.calls.lock().clone()
    }

    fn allow(&self, calls: usize) {
        self.leader.permits.add_permits(calls);
    }
}

fn session(key: u32, session_id: &str) -> SessionKeepAlive {
    let namespace = NamespaceRef { account: AccountId(7), name: "orders".to_owned(), incarnation: Incarnation(1) };
    SessionKeepAlive { key, namespace, session_id: session_id.to_owned(), epoch: 3 }
}

async fn done(keep_alive: JoinHandle<KeepAliveResult>) -> KeepAliveResult {
    keep_alive.await.expect("it does not panic")
}

#[tokio::test(start_paused = true)]
async fn a_lone_one_goes_at_once_and_those_that_come_meanwhile_go_together() {
    let world = World::start().await;
    let began = Instant::now();
    let lone = world.send("a");
    assert_eq!(world.calls().await, [["a"]]);
    let others = ["b", "gone", "undecided"].map(|name| world.send(name));
    assert_eq!(world.calls().await.len(), 1, "they wait");
    world.allow(1);
    assert_eq!(world.calls().await[1..], [["b", "gone", "undecided"]]);
    assert_eq!(done(lone).await, Ok(recorded()));
    world.allow(1);
    let [b, gone, undecided] = others;
    assert_eq!(done(b).await, Ok(recorded()));
    let not_found = CommandError::SessionNotFound("gone".to_owned());
    assert_eq!(done(gone).await, Ok(KeepAliveOutcome::Rejected(not_found)));
    assert_eq!(done(undecided).await, Ok(KeepAliveOutcome::Undecided));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_slow_holds_others_back_for_no_longer_than_they_gather() {
    let world = World::start().await;
    let slow = world.send("slow");
    assert_eq!(world.calls().await, [["slow"]]);
    let next = ["a", "b"].map(|name| world.send(name));
    assert_eq!(world.calls().await.len(), 1);
    advance(2 * GATHERING_TIME).await;
    assert_eq!(world.calls().await, [vec!["slow"], vec!["a", "b"]]);
    world.allow(2);
    for keep_alive in next.into_iter().chain([slow]) {
        assert_eq!(done(keep_alive).await, Ok(recorded()));
    }
}

#[tokio::test(start_paused = true)]
async fn shards_of_a_group_share_calls_and_a_failure_is_that_of_its_own_call_and_names_the_shard() {
    let world = World::start().await;
    let first = world.send("a");
    assert_eq!(world.calls().await.len(), 1);
    let soon = Duration::from_millis(50);
    let failing = [(0, "b"), (u32::MAX, "c")].map(|(key, name)| world.send_to(key, name, soon));
    assert_eq!(world.calls().await.len(), 1);
    advance(2 * GATHERING_TIME).await;
    assert_eq!(world.calls().await, [vec!["a"], vec!["b", "c"]]);
    for (keep_alive, id) in failing.into_iter().zip(["locks_00", "locks_01"]) {
        let error = done(keep_alive).await.expect_err("nobody answers in time");
        assert!(matches!(&error, RouteError::Unavailable { shard, .. } if shard == id), "{error}");
    }
    let later = world.send("d");
    advance(2 * GATHERING_TIME).await;
    world.calls().await;
    world.allow(3);
    assert_eq!((done(first).await, done(later).await), (Ok(recorded()), Ok(recorded())));
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_another_kind_fails_the_call() {
    let world = World::start().await;
    world.allow(2);
    let error = done(world.send("odd")).await.expect_err("the answer means nothing");
    assert!(matches!(error, RouteError::InvalidReply { .. }), "{error}");
    assert_eq!(done(world.send("a")).await, Ok(recorded()));
}

fn queued(session_id: &str) -> (QueuedKeepAlive, oneshot::Receiver<KeepAliveResult>) {
    let (sink, reply) = oneshot::channel();
    (QueuedKeepAlive { session: session(0, session_id), deadline: Instant::now(), sink }, reply)
}

/// Queues keep-alives for sessions of this name, and returns the sizes of the calls.
fn batches(count: usize, session_id: &str) -> Vec<usize> {
    let (queue, mut replies) = (KeepAliveQueue::default(), Vec::new());
    for number in 0..count {
        let (keep_alive, reply) = queued(session_id);
        assert_eq!(queue.push(keep_alive), number == 0, "the first one starts the sending task");
        replies.push(reply);
    }
    assert!(!queue.try_end());
    let mut batches = Vec::new();
    loop {
        let batch = queue.take_batch();
        if batch.is_empty() {
            break;
        }
        let names = batch.iter().map(|queued| queued.session.clone()).collect();
        assert!(codec::encode(&Query::KeepAlives { sessions: names }).len() <= MAX_CALL_BYTES);
        batches.push(batch.len());
    }
    assert!(queue.try_end());
    batches
}

#[tokio::test]
async fn a_call_has_bounds_and_the_rest_goes_in_the_next() {
    assert_eq!(batches(2 * MAX_KEEP_ALIVES + 1, "se_1"), [MAX_KEEP_ALIVES, MAX_KEEP_ALIVES, 1]);
    let name = "x".repeat(MAX_CALL_BYTES / 10);
    assert_eq!(batches(20, &name), [9, 9, 2]);
}

#[tokio::test]
async fn a_keep_alive_whose_caller_left_is_not_sent() {
    let queue = KeepAliveQueue::default();
    let (left, stays) = (queued("left"), queued("stays"));
    drop(left.1);
    queue.push(left.0);
    queue.push(stays.0);
    let names: Vec<String> = queue.take_batch().into_iter().map(|queued| queued.session.session_id).collect();
    assert_eq!(names, ["stays"]);
}
