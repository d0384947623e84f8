//! Nodes that serve gateways, and no other gateway: every answer names the one at the leader, a session of the Rust
//! client is connected there, and with a node goes only its own.

use std::time::Duration;

use futures::{StreamExt, stream};
use holdfast_client::Client;
use holdfast_cluster_tests::get_lock;
use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{Message as Says, Open};
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::server_message::Message as Told;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use holdfast_testkit::{Cluster, RestClient, SessionSocket, Setup, Tenant, eventually};
use serde_json::json;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

const NAMESPACE: &str = "ns";
const LEADER_HEADER: &str = "holdfast-leader";
/// Of sessions that a test leaves behind.
const SHORT_TTL_MS: u64 = 5_000;
/// Long enough for any failover.
const TTL: Duration = Duration::from_secs(20);

/// A cluster, and a tenant that was created through the gateway of the first node.
async fn start_cluster(tenant: &str) -> (Cluster, Tenant) {
    let cluster = Cluster::start(Setup { gateways: 0, has_node_gateways: true, ..Setup::default() }).await;
    let tenant = cluster.create_tenant(tenant, &[NAMESPACE]).await;
    (cluster, tenant)
}

/// Acquires a lock over REST, or extends the hold. Returns the gateway that the answer names; empty if it names none.
/// The next three functions do so, too.
async fn acquire_over_rest(api: RestClient) -> Result<String, String> {
    let line = format!("POST /v1/namespaces/{NAMESPACE}/locks/one/acquire");
    let body = json!({"process_id": "p", "mode": "WRITE", "ttl_ms": 600_000}).to_string();
    let answer = api.try_send(&line, &[("content-type", "application/json")], body.into()).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let is_granted = answer.status == 200 && answer.body["success"] == true;
    if is_granted { Ok(answer.header(LEADER_HEADER).to_owned()) } else { Err(answer.text) }
}

/// Reads a lock over gRPC.
async fn get_over_grpc(api: RestClient) -> Result<String, String> {
    let get = v1::GetLockRequest { namespace: NAMESPACE.to_owned(), name: Some("one".into()), ..Default::default() };
    let answer = LocksServiceClient::new(channel(&api).await?).get_lock(with_credential(&api, get)).await;
    let answer = answer.map_err(|status| status.to_string())?;
    let leader = answer.metadata().get(LEADER_HEADER);
    Ok(leader.map_or("", |leader| leader.to_str().expect("an address is ASCII")).to_owned())
}

/// Opens a session over gRPC.
async fn open_over_grpc(api: RestClient) -> Result<String, String> {
    let (namespace, process_id) = (NAMESPACE.to_owned(), "p".to_owned());
    let open = Open { namespace, process_id, ttl_ms: SHORT_TTL_MS, ..Default::default() };
    let first = v1::ClientMessage { seq: 1, message: Some(Says::Open(open)) };
    let messages = stream::iter([first]).chain(stream::pending());
    let answers = SessionsServiceClient::new(channel(&api).await?).connect(with_credential(&api, messages)).await;
    let answer = answers.map_err(|status| status.to_string())?.into_inner().message().await;
    match answer.map_err(|status| status.to_string())?.and_then(|message| message.message) {
        Some(Told::Opened(opened)) => Ok(opened.leader.unwrap_or_default()),
        other => Err(format!("the session was not opened: {other:?}")),
    }
}

/// Opens a session over WebSocket.
async fn open_over_websocket(api: RestClient) -> Result<String, String> {
    let mut socket = SessionSocket::connect(&api).await;
    socket.send(json!({"type": "open", "process_id": "p", "ttl_ms": SHORT_TTL_MS})).await;
    let opened = socket.receive().await;
    assert_eq!(opened["type"], "opened", "{opened}");
    Ok(opened["leader"].as_str().unwrap_or_default().to_owned())
}

async fn channel(api: &RestClient) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", api.address)).expect("an address makes a URL");
    endpoint.connect().await.map_err(|error| error.to_string())
}

fn with_credential<T>(api: &RestClient, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let bearer = format!("Bearer {}", api.key).parse().expect("a key is ASCII");
    request.metadata_mut().insert("authorization", bearer);
    request
}

/// Waits until a call through the gateway of a node, chosen by the leader's, names the gateway of the leader's node.
/// Returns that node.
async fn wait_leader_named(
    cluster: &Cluster,
    tenant: &Tenant,
    through: impl Fn(usize) -> usize,
    call: impl AsyncFn(RestClient) -> Result<String, String>,
) -> usize {
    let shard = cluster.locks_shard(tenant, NAMESPACE);
    eventually("the gateway of the leader's node is named", async || {
        let (leader, ..) = cluster.wait_leader(&shard).await;
        let named = call(cluster.rest_client(through(leader), &tenant.key)).await?;
        let expected = cluster.gateway_address(leader).to_string();
        if named == expected { Ok(leader) } else { Err(format!("{named:?} is named, and {expected} leads")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_gateway_names_the_one_at_the_leader_and_goes_on_without_it() {
    let (mut cluster, tenant) = start_cluster("named").await;
    for distance in 0..3 {
        let through = |leader: usize| (leader + distance) % 3;
        wait_leader_named(&cluster, &tenant, through, acquire_over_rest).await;
        wait_leader_named(&cluster, &tenant, through, get_over_grpc).await;
        wait_leader_named(&cluster, &tenant, through, open_over_grpc).await;
        wait_leader_named(&cluster, &tenant, through, open_over_websocket).await;
    }

    let dead = wait_leader_named(&cluster, &tenant, |leader| leader, acquire_over_rest).await;
    cluster.nodes[dead].kill().await;
    // Of the three numbers, whose sum is 3, the one that is neither dead nor leads.
    let follower = |leader: usize| 3 - dead - leader;
    let leader = wait_leader_named(&cluster, &tenant, follower, acquire_over_rest).await;
    wait_leader_named(&cluster, &tenant, follower, open_over_grpc).await;
    let view = get_lock(&cluster.rest_client(leader, &tenant.key), NAMESPACE, "one").await.expect("a look");
    assert_eq!(view.holds.iter().map(|hold| &*hold.owner).collect::<Vec<_>>(), ["p"]);

    cluster.nodes[dead].start();
    cluster.wait_ready().await;
    wait_leader_named(&cluster, &tenant, |_| dead, acquire_over_rest).await;
    cluster.wait_equal_states().await;
}

/// Waits until a session is connected to the gateway of the leader's node, and none to another. Returns that node.
async fn wait_session_at_leader(cluster: &Cluster, tenant: &Tenant) -> usize {
    let shard = cluster.locks_shard(tenant, NAMESPACE);
    eventually("the session is connected to the gateway of the leader's node", async || {
        let (leader, ..) = cluster.wait_leader(&shard).await;
        let mut connected = Vec::new();
        for (node, process) in cluster.nodes.iter().enumerate().filter(|(_, process)| process.is_started()) {
            if process.metrics().await?.sum("holdfast_session_connections") > 0.0 {
                connected.push(node);
            }
        }
        if connected == [leader] { Ok(leader) } else { Err(format!("it is at {connected:?}, and {leader} leads")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_the_rust_client_follows_the_leader_with_its_holds() {
    let (mut cluster, tenant) = start_cluster("follows").await;
    let (leader, ..) = cluster.wait_leader(&cluster.locks_shard(&tenant, NAMESPACE)).await;
    // The only gateway that the client is told of. It outlives the leader.
    let known = (leader + 1) % 3;
    let client = Client::new(&format!("http://{}", cluster.gateway_address(known)), &tenant.key).unwrap();
    let session = client.session(NAMESPACE).ttl(TTL).open().await.unwrap();
    let guard = session.mutex("one").lock().await.unwrap();
    assert_eq!(wait_session_at_leader(&cluster, &tenant).await, leader);
    assert_eq!(guard.check().unwrap(), guard.fencing_token());

    cluster.nodes[leader].kill().await;
    assert_ne!(wait_session_at_leader(&cluster, &tenant).await, leader);
    assert_eq!(guard.check().unwrap(), guard.fencing_token());
    let view = get_lock(&cluster.rest_client(known, &tenant.key), NAMESPACE, "one").await.expect("a look");
    assert_eq!(view.holds.iter().map(|hold| hold.token).collect::<Vec<_>>(), [guard.fencing_token()]);

    guard.release().await.unwrap();
    session.close().await;
}

/// The gateway of the stopping node ends the waits of its callers. There is another leader by then for whoever repeats.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_hands_over_before_its_gateway_ends() {
    let (mut cluster, tenant) = start_cluster("stops").await;
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let (leader, ..) = cluster.wait_leader(&shard).await;
    let other = cluster.rest_client((leader + 1) % 3, &tenant.key);
    other.acquire(NAMESPACE, "one", "p").await.unwrap();
    let acquire = json!({"process_id": "q", "mode": "WRITE", "ttl_ms": 600_000, "wait_ms": 10_000});
    let path = format!("POST /v1/namespaces/{NAMESPACE}/locks/one/acquire");
    let waiter = cluster.rest_client(leader, &tenant.key);
    let waiter = tokio::spawn({
        let (path, acquire) = (path.clone(), acquire.clone());
        async move { waiter.json(&path, acquire).await }
    });
    eventually("the call waits", async || {
        let view = other.call(&format!("GET /v1/namespaces/{NAMESPACE}/locks/one")).await.ok();
        if view["lock"]["waiting"] == 1 { Ok(()) } else { Err(view.to_string()) }
    })
    .await;

    // It has to stop, since its parent seems to have ended.
    drop(cluster.nodes[leader].take_stdin());
    let ended = waiter.await.expect("it does not panic");
    assert_eq!((ended.status, &ended.body["code"]), (504, &json!("DEADLINE_EXCEEDED")), "{}", ended.body);
    let (now, ..) = cluster.wait_leader(&shard).await;
    assert_ne!(now, leader, "the stopping node leads while its gateway ends");
    let release = json!({"process_id": "p"});
    other.json(&format!("POST /v1/namespaces/{NAMESPACE}/locks/one/release"), release).await.ok();
    assert_eq!(other.json(&path, acquire).await.ok()["success"], true);
    assert!(cluster.nodes[leader].wait_for_exit().await.success());
}
