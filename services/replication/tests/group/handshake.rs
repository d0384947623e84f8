//! Whom a node talks to, and whom it refuses.

use std::sync::Arc;

use crate::common::node::{Disk, Node, NodeIdentity, secret};
use crate::common::{CLUSTER_ID, Cluster, Setup, command, eventually, node_id, propose_to, replica_id};
use holdfast_auth::ServiceSigner;
use holdfast_proto::internal::{Hello, HelloReplica, Kind, RaftMessage, RaftMessages};
use holdfast_rpc::{ClientConnection, ConnectError, Dialer, Event, Identity, Protocol, TcpDialer, identify};
use holdfast_storage::MemoryDisk;

/// The protocol of peers, spoken by hand.
struct ByHand;

impl Protocol for ByHand {
    const NAME: &'static str = "raft";
    const MAX_FRAME_BYTES: usize = 16 << 20;
    type Request = RaftMessages;
    type Reply = RaftMessages;
    type Handshake = Hello;
}

fn hello(node: &str, cluster_id: &str, replica: u64) -> Hello {
    let replicas = vec![HelloReplica { id: replica, pristine: true }];
    Hello {
        cluster_id: cluster_id.into(),
        node_id: node.into(),
        store_id: "a store of the test".into(),
        replicas,
        restored_from: String::new(),
        lease_ms: 0,
        run: 0,
        lowest_rules: 1,
        highest_rules: 2,
    }
}

/// Introduces itself to a node by hand, on its connection of that number.
async fn handshake(
    address: &str,
    secret_name: &str,
    hello: Hello,
    connection: u64,
) -> Result<ClientConnection<ByHand>, ConnectError> {
    let stream = TcpDialer.connect(address).await.expect("it listens");
    let signer = ServiceSigner::new(&secret(secret_name), "test");
    let identity = Identity::new(hello.node_id.clone(), hello.run, signer).with_next_connection(connection);
    identify::<ByHand>(stream, &identity, &hello).await.map(|(connection, _)| connection)
}

async fn assert_rejected(address: &str, secret: &str, hello: Hello, words: &str) {
    let rejected = handshake(address, secret, hello, 1).await;
    let error = rejected.err().unwrap_or_else(|| panic!("accepted in spite of: {words}"));
    println!("{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_with_a_clear_message_and_change_nothing() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.propose(&command("before")).await.expect("answered");
    cluster.all_applied().await;
    let address = cluster.node(0).address.to_string();
    let good = || hello(&node_id(1), CLUSTER_ID, replica_id(1));
    assert_rejected(&address, "another secret", good(), "no service token of this cluster").await;
    let other_cluster = hello(&node_id(1), "ffff", replica_id(1));
    assert_rejected(&address, "secret", other_cluster, "belongs to cluster ffff").await;
    assert_rejected(&address, "secret", hello("nd_9", CLUSTER_ID, 99), "nd_9 is not in the cluster config").await;
    assert_rejected(&address, "secret", good(), "another data directory").await;
    let earlier = Hello { highest_rules: 1, ..good() };
    let words = "knows rules 1 to 1, and group g0 on node nd_1 goes by rules 2";
    assert_rejected(&address, "secret", earlier, words).await;
    let first = Hello { lowest_rules: 0, highest_rules: 0, ..good() };
    assert_rejected(&address, "secret", first, "does not say which rules it knows").await;
    cluster.propose(&command("after")).await.expect("answered");
    cluster.all_applied().await;
    assert!(cluster.running().all(|(_, node)| node.machine.commands() == [command("before"), command("after")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_replica_that_does_not_live_on_the_speakers_node_are_refused() {
    let mut cluster = Cluster::prepare(Setup::default()).await;
    cluster.start(0).await;
    let address = cluster.node(0).address.to_string();
    let mut wire = handshake(&address, "secret", hello(&node_id(1), CLUSTER_ID, replica_id(1)), 1).await.expect("met");
    let message = |from, to, kind: Kind, body: &'static [u8], call| RaftMessage {
        from,
        to,
        call,
        kind: kind.into(),
        body: body.into(),
        ..RaftMessage::default()
    };
    let messages = vec![
        message(replica_id(2), replica_id(0), Kind::Vote, b"", 1),
        message(replica_id(1), 77, Kind::Vote, b"", 2),
        message(replica_id(1), replica_id(0), Kind::Vote, b"garbage", 3),
        message(replica_id(1), replica_id(0), Kind::Append, b"garbage", 4),
        message(replica_id(1), replica_id(0), Kind::Heartbeat, b"", 5),
        message(replica_id(1), replica_id(0), Kind::Answer, b"", 6),
    ];
    wire.send(RaftMessages { messages, ..RaftMessages::default() }).expect("it is small");
    let mut answered = Vec::new();
    while answered.len() < 6 {
        let Event::Received(frame) = wire.next(true).await.expect("connected") else { continue };
        for message in frame.messages {
            println!("{}: {}", message.call, String::from_utf8_lossy(&message.body));
            assert_eq!(message.kind(), Kind::Error);
            answered.push(message.call);
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3, 4, 5, 6]);
    assert!(cluster.group(0).failure().is_none());
    assert!(cluster.node(0).store.replica(replica_id(0)).is_pristine().expect("readable"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_connection_of_a_peer_ends_the_one_before() {
    let mut cluster = Cluster::prepare(Setup::default()).await;
    cluster.start(0).await;
    let address = cluster.node(0).address.to_string();
    let hello = || hello(&node_id(1), CLUSTER_ID, replica_id(1));
    let mut first = handshake(&address, "secret", hello(), 1).await.expect("met");
    let _second = handshake(&address, "secret", hello(), 2).await.expect("met");
    let ended = async { while first.next(true).await.is_ok() {} };
    tokio::time::timeout(crate::common::MAX_WAIT, ended).await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_at_the_address_of_another_gets_no_message() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let lost = (leader + 1) % 3;
    let other = (leader + 2) % 3;
    cluster.propose(&command("before")).await.expect("answered");
    cluster.all_applied().await;
    cluster.kill(lost).await;
    // Somebody else listens where the node was: a configuration with two addresses mixed up.
    let disk = Disk::Memory(MemoryDisk::new());
    let claims = NodeIdentity { node: node_id(other), ..NodeIdentity::honest(other) };
    let impostor = Node::start_as(claims, &disk, Vec::new(), cluster.group_options(other)).await;
    cluster.redirect(lost, impostor.address);
    for number in 0..50 {
        propose_to(cluster.group(leader), leads.term, &command(format!("{number}"))).await.expect("answered");
    }
    assert_eq!(impostor.machine.len(), 0);
    assert!(impostor.store.replica(replica_id(lost)).is_pristine().expect("readable"));
    impostor.kill(&disk).await;
    cluster.start(lost).await;
    eventually("the right one has caught up", || async {
        (cluster.node(lost).machine.commands() == cluster.node(leader).machine.commands()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_not_formed_while_one_of_its_nodes_has_never_been_met() {
    let mut cluster = Cluster::prepare(Setup::default()).await;
    cluster.start(0).await;
    cluster.start(1).await;
    let (host, group) = (cluster.node(0).manager.clone(), cluster.group(0).clone());
    let forming = tokio::spawn(async move { host.bootstrap(&group).await });
    let met = Arc::new(cluster.node(1).store.clone());
    eventually("the two have met", || async { met.peer_pin(replica_id(0)).expect("readable") }).await;
    assert!(!cluster.group(0).is_bootstrapped().await);
    cluster.start(2).await;
    forming.await.expect("it does not panic").expect("the group forms");
    cluster.propose(&command("first")).await.expect("answered");
    cluster.all_applied().await;
}
