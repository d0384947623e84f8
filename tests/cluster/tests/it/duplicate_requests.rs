//! Copies of calls that arrive late change nothing.

use holdfast_cluster_tests::history::{Call, Hold, View};
use holdfast_cluster_tests::{call_lock, get_lock};
use holdfast_proto::internal::answer::Outcome;
use holdfast_testkit::{Cluster, Setup, Tenant, eventually};
use holdfast_types::{
    Acquire, AcquireOutcome, Claim, Command, LocksCommand, Mode, NamespaceRef, Owner, Path, Reply, Response, Wait,
    codec,
};

const TTL_MS: u64 = 3_600_000;

fn extend_call(token: u64) -> Call {
    Call::Acquire { mode: Mode::Write, ttl_ms: TTL_MS, token: Some(token) }
}

fn is_held_by(view: &View, owner: &str, token: u64) -> bool {
    view.holds == [Hold { token, owner: owner.into(), mode: Mode::Write }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_or_extension_with_the_token_of_a_gone_hold_changes_nothing() {
    let cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("late", &["orders"]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let call = async |owner, call| call_lock(&api, "orders", "one", owner, call).await.expect("the service is up");

    let first = api.acquire("orders", "one", "p").await.unwrap();
    assert!(call("p", Call::Release { token: Some(first) }).await.success);
    let answer = call("p", extend_call(first)).await;
    assert_eq!((answer.success, answer.reason.as_deref()), (false, Some("NOT_HELD")));
    assert_eq!(answer.lock.holds, [], "an extension took what was free");

    let second = api.acquire("orders", "one", "p").await.unwrap();
    assert!(second > first, "the tokens {first} and {second} do not rise");
    let answer = call("p", Call::Release { token: Some(first) }).await;
    assert!(!answer.success && is_held_by(&answer.lock, "p", second), "{answer:?}");
    let answer = call("p", extend_call(first)).await;
    assert!(!answer.success && is_held_by(&answer.lock, "p", second), "{answer:?}");

    assert!(call("p", Call::Release { token: Some(second) }).await.success);
    let third = api.acquire("orders", "one", "q").await.unwrap();
    for late in
        [extend_call(first), extend_call(second), Call::Release { token: Some(second) }, Call::Release { token: None }]
    {
        let answer = call("p", late).await;
        assert!(!answer.success && is_held_by(&answer.lock, "q", third), "{late:?}: {answer:?}");
    }
}

/// A command that takes a lock for writing.
fn acquire_command(tenant: &Tenant, incarnation: &str, lock: &str) -> Command {
    let incarnation = incarnation.parse().expect("the id of a namespace can be read");
    Command::Locks(LocksCommand::Acquire(Acquire {
        namespace: NamespaceRef { account: tenant.account, name: "orders".into(), incarnation },
        owner: Owner::Process("late".into()),
        claims: vec![Claim { path: Path::flat(lock), mode: Mode::Write }],
        ttl_ms: Some(TTL_MS),
        transition_ms: 0,
        metadata: std::collections::BTreeMap::new(),
        fencing_token: None,
        requested_expires_at_ns: None,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: None,
        attempt: 0,
        message: None,
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_addressed_to_an_old_term_is_not_executed() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("terms", &[]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let id = api.create_namespace("orders", "orders").await.unwrap();
    let shard = cluster.locks_shard(&tenant, "orders");
    let (old_node, old_replica, old_term) = cluster.wait_leader(&shard).await;

    cluster.nodes[old_node].kill().await;
    let (node, replica, term) = cluster.wait_leader(&shard).await;
    assert!(term > old_term && replica != old_replica);
    cluster.nodes[old_node].start();
    cluster.wait_ready().await;

    let (command, key) = (acquire_command(&tenant, &id, "one"), cluster.locks_key(&tenant, "orders"));
    let to = [(node, replica, old_term), (old_node, old_replica, old_term), (old_node, old_replica, term)];
    for (node, replica, term) in to.into_iter().chain([(node, replica, 0), (node, replica, term + 1)]) {
        let outcome = cluster.node_client(node).command(replica, term, key, &command).await.unwrap();
        assert!(matches!(outcome, Outcome::NotLeader(_)), "replica {replica} in term {term}: {outcome:?}");
    }
    assert_eq!(get_lock(&api, "orders", "one").await.unwrap().holds, []);

    // The very same command is carried out where it is addressed rightly.
    let reply: Reply = eventually("the leader carries it out", async || {
        let (node, replica, term) = cluster.wait_leader(&shard).await;
        match cluster.node_client(node).command(replica, term, key, &command).await {
            Ok(Outcome::Reply(bytes)) => Ok(codec::decode(&bytes).unwrap()),
            // Leadership may be moved in between.
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(
        matches!(reply.outcome, Ok(Response::Acquired { outcome: AcquireOutcome::Granted { .. }, .. })),
        "{reply:?}"
    );
    assert_eq!(get_lock(&api, "orders", "one").await.unwrap().holds.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_connection_of_a_caller_is_refused_after_a_later_one() {
    let cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("connections", &[]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let id = api.create_namespace("orders", "orders").await.unwrap();
    let shard = cluster.locks_shard(&tenant, "orders");
    let (node, replica, term) = cluster.wait_leader(&shard).await;
    let key = cluster.locks_key(&tenant, "orders");
    let as_caller = async |connection: u64, lock: &str| {
        let mut node = cluster.node_client(node).as_caller("delayed", connection);
        node.command(replica, term, key, &acquire_command(&tenant, &id, lock)).await
    };
    assert!(matches!(as_caller(2, "two").await, Ok(Outcome::Reply(_))));
    let refused = as_caller(1, "one").await.expect_err("a later connection was there");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    assert_eq!(get_lock(&api, "orders", "one").await.unwrap().holds, []);
    assert_eq!(get_lock(&api, "orders", "two").await.unwrap().holds.len(), 1);
}
