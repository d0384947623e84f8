//! What is saved and answered of a shard that broke in the middle of a section, before its state is built again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use holdfast_auth::ClusterSecret;
use holdfast_cluster::ClusterConfig;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Application, Command, Incarnation, KeepAliveOutcome, Limits, LocksCommand, Metadata, NamespaceMessage,
    NamespaceRef, OpenSession, Query, Reply, RequestId, Response, SessionKeepAlive, codec,
};
use holdfast_node::{ApplyObserver, GroupMachine, Node, NodeOptions, ShardMachine};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Application as NamedApplication, Call};
use holdfast_replication::{EntryHeader, FailedEntry, ReplyMode, StateMachine};
use holdfast_routing::TcpDialer;
use holdfast_storage::{MemoryDisk, NodeStore};
use tokio::time::{Duration, sleep, timeout};

/// Longer than anything takes on a busy machine.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);
pub(crate) const SHARD: &str = "locks_00";
/// A key of that shard, which is the only one with locks.
pub(crate) const KEY: u32 = 7;

/// Panics after the commands of each section for [`SHARD`], once it is told to.
#[derive(Default)]
struct PanickingObserver(AtomicBool);

impl ApplyObserver for PanickingObserver {
    fn initialized(&self, _: &str, _: &ShardState) {}

    fn applied(&self, shard: &str, _: EntryHeader, commands: &[Bytes], _: &[Bytes], _: &ShardState) {
        let panics = shard == SHARD && !commands.is_empty() && self.0.load(Ordering::Relaxed);
        assert!(!panics, "a bug");
    }

    fn restored(&self, _: &str, _: &ShardState) {}
}

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "orders".to_owned(), incarnation: Incarnation(1) }
}

fn encoded(command: LocksCommand) -> Bytes {
    codec::encode(&Command::Locks(command)).into()
}

pub(crate) fn open_namespace() -> Bytes {
    let message = NamespaceMessage::Open { namespace: namespace(), limits: Limits::default() };
    encoded(LocksCommand::Deliver { source: "namespaces_00".to_owned(), number: 1, message })
}

pub(crate) fn open_session(session_id: &str) -> Bytes {
    encoded(LocksCommand::OpenSession(OpenSession {
        namespace: namespace(),
        session_id: session_id.to_owned(),
        resume: false,
        request_id: RequestId([1; 16]),
        process_id: "p".to_owned(),
        ttl_ms: 60_000,
        metadata: Metadata::new(),
    }))
}

#[test]
fn a_shard_that_broke_is_in_no_snapshot() {
    crate::mutations::enable_from_env();
    let observer = Arc::<PanickingObserver>::default();
    let shard = |id: &str| {
        let observer: Arc<dyn ApplyObserver> = observer.clone();
        Arc::new(ShardMachine::new(Application::Locks, id, None, Some(observer)))
    };
    let group = GroupMachine::new(vec![shard(SHARD), shard("locks_01")]);
    let header = |now_ms| EntryHeader { rules: 1, now_ms, wall_ms: now_ms, ..EntryHeader::default() };
    let commands = [open_namespace()];
    assert!(group.apply(header(1_000), 0, &commands, ReplyMode::Skip).is_ok() && group.can_freeze());
    observer.0.store(true, Ordering::Relaxed);
    let failure = group.apply(header(2_000), 0, &commands, ReplyMode::Skip).err().expect("it breaks");
    assert!(group.isolate(0, &FailedEntry { term: 1, index: 5, failure }), "the other shard goes on");
    assert!(!group.can_freeze() && group.freeze(&|_| false).is_err(), "its state may be changed in part");
}

/// Starts a node that has all replicas of its cluster and does not listen.
async fn start(observer: Arc<PanickingObserver>) -> Node {
    let secret = ClusterSecret::generate().expect("there are random numbers");
    let nodes = vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())];
    let config = ClusterConfig::generate(nodes, 1, 1).expect("it is a config");
    let options = NodeOptions::new("nd_1", config, secret, "");
    let store = NodeStore::in_memory(&MemoryDisk::new(), &options.identity()).expect("the store opens");
    let node = Node::with_store(&options, store, Arc::new(TcpDialer)).expect("the node starts");
    let node = node.with_observer(observer);
    node.start_replicas(&options).await.expect("the replicas start");
    node
}

/// Waits until the only group has a leader, and returns its replica and its term.
pub(crate) async fn wait_led(node: &Node) -> (u64, u64) {
    let looking = async {
        loop {
            if let Some(led) = node.led_replicas().first() {
                return *led;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(MAX_WAIT, looking).await.expect("it leads")
}

/// Calls the shard. Returns its response, or `None` if the outcome is not known.
pub(crate) async fn call(node: &Node, body: Body) -> Option<Response> {
    let (replica, term) = wait_led(node).await;
    let (body, application) = (Some(body), NamedApplication::Locks.into());
    let call = Call { id: 1, replica, term, deadline_ms: 10_000, body, application, key: KEY, ..Call::default() };
    match node.local().handler.call(call).await.outcome {
        Some(Outcome::Reply(reply)) => {
            let reply: Reply = codec::decode(&reply).expect("it can be read");
            Some(reply.outcome.expect("nothing is refused"))
        }
        Some(Outcome::Unknown(_)) => None,
        other => panic!("{other:?}"),
    }
}

async fn keep_alive(node: &Node, session_id: &str, epoch: u64) -> Vec<KeepAliveOutcome> {
    let session = SessionKeepAlive { key: KEY, namespace: namespace(), session_id: session_id.to_owned(), epoch };
    let query = Query::KeepAlives { sessions: vec![session] };
    match call(node, Body::Query(codec::encode(&query).into())).await {
        Some(Response::KeptAlive(outcomes)) => outcomes,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_broke_records_no_keep_alive() {
    crate::mutations::enable_from_env();
    let observer = Arc::<PanickingObserver>::default();
    let node = start(observer.clone()).await;
    call(&node, Body::Command(open_namespace())).await.expect("it is open");
    let opened = call(&node, Body::Command(open_session("se_1"))).await;
    let Some(Response::SessionOpened { session, .. }) = opened else { panic!("{opened:?}") };
    let outcomes = keep_alive(&node, "se_1", session.epoch).await;
    assert!(matches!(outcomes[..], [KeepAliveOutcome::Recorded { .. }]), "{outcomes:?}");
    // It breaks whenever it is built again, too.
    observer.0.store(true, Ordering::Relaxed);
    assert_eq!(call(&node, Body::Command(open_session("se_2"))).await, None, "it breaks");
    let outcomes = keep_alive(&node, "se_1", session.epoch).await;
    assert_eq!(outcomes, [KeepAliveOutcome::Undecided], "what is acknowledged is recorded nowhere");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_replica_says_that_another_leads() {
    crate::mutations::enable_from_env();
    let node = start(Arc::default()).await;
    let (replica, term) = wait_led(&node).await;
    let (body, application) = (Some(Body::Command(open_namespace())), NamedApplication::Locks.into());
    let replica = replica + 1;
    let call = Call { id: 1, replica, term, deadline_ms: 10_000, body, application, key: KEY, ..Call::default() };
    let outcome = node.local().handler.call(call).await.outcome;
    assert!(matches!(&outcome, Some(Outcome::NotLeader(hint)) if hint.leader == 0), "{outcome:?}");
    node.stop().await;
}
