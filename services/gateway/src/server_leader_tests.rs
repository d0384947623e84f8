//! The address of the leader's gateway, as clients of each protocol learn of it.

use futures::{StreamExt, stream};
use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, Message as Said};
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_proto::v1::server_message::{self as server, Message as Says};
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use tonic::metadata::MetadataMap;

use super::{TestServer, acquire};
use crate::test_cluster::TestCluster;

const GATEWAY: &str = "node-1.example.com:8080";

/// Starts with a node whose gateway has this address.
async fn start(gateway_address: Option<&str>) -> TestServer {
    let running = TestServer::with_cluster(TestCluster::with_gateway_address(gateway_address).await, false).await;
    running.make_namespace().await;
    running
}

/// Returns the status of the response to a `GET` with these headers, and the leader that it names.
async fn rest_leader(running: &TestServer, path: &str, headers: &[(&str, &str)]) -> (u16, Option<String>) {
    let mut request = reqwest::Client::new().get(running.url(path)).bearer_auth(&running.tenant.api_key);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let leader = response.headers().get("holdfast-leader").map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), leader)
}

fn grpc_leader(metadata: &MetadataMap) -> Option<String> {
    metadata.get("holdfast-leader").map(|value| value.to_str().unwrap().to_owned())
}

/// Opens a session, or resumes the one with this id.
async fn open_session(running: &TestServer, session_id: Option<String>) -> server::Opened {
    let (namespace, process_id) = ("ns".to_owned(), "p".to_owned());
    let open = client::Open { namespace, process_id, session_id, ttl_ms: 60_000, ..Default::default() };
    let open = v1::ClientMessage { seq: 1, message: Some(Said::Open(open)) };
    let messages = stream::iter([open]).chain(stream::pending());
    let mut sessions = SessionsServiceClient::new(running.channel.clone());
    let mut received = sessions.connect(running.call(messages)).await.unwrap().into_inner();
    match received.next().await.unwrap().unwrap().message {
        Some(Says::Opened(opened)) => opened,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn responses_about_locks_name_the_leaders_gateway_over_rest() {
    let running = start(Some(GATEWAY)).await;
    let leader = Some(GATEWAY.to_owned());
    let lock = "/v1/namespaces/ns/locks/l";
    assert_eq!(rest_leader(&running, lock, &[]).await, (200, leader.clone()));
    assert_eq!(rest_leader(&running, lock, &[("holdfast-timeout-ms", "5000")]).await, (200, leader.clone()));
    assert_eq!(rest_leader(&running, "/v1/namespaces/ns/sessions/se_none", &[]).await, (404, leader.clone()));
    assert_eq!(rest_leader(&running, "/v1/namespaces/ns/events", &[]).await, (200, leader));
    assert_eq!(rest_leader(&running, "/v1/namespaces/ns", &[]).await, (200, None));
    assert_eq!(rest_leader(&running, "/v1/namespaces/none/locks/l", &[]).await, (404, None));
}

#[tokio::test]
async fn responses_about_locks_name_the_leaders_gateway_over_grpc() {
    let running = start(Some(GATEWAY)).await;
    let leader = Some(GATEWAY.to_owned());
    let mut locks = LocksServiceClient::new(running.channel.clone());
    let taken = locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap();
    assert_eq!(grpc_leader(taken.metadata()), leader);
    let mut sessions = SessionsServiceClient::new(running.channel.clone());
    let get = v1::GetSessionRequest { namespace: "ns".into(), session_id: "se_none".into() };
    let missing = sessions.get_session(running.call(get)).await.unwrap_err();
    assert_eq!(grpc_leader(missing.metadata()), leader);
    let mut namespaces = NamespacesServiceClient::new(running.channel.clone());
    let get = v1::GetNamespaceRequest { name: "ns".into() };
    let found = namespaces.get_namespace(running.call(get)).await.unwrap();
    assert_eq!(grpc_leader(found.metadata()), None);
}

#[tokio::test]
async fn a_session_learns_of_the_leaders_gateway_when_it_is_opened_and_resumed() {
    let running = start(Some(GATEWAY)).await;
    let opened = open_session(&running, None).await;
    assert_eq!((opened.resumed, opened.leader.as_deref()), (false, Some(GATEWAY)));
    let resumed = open_session(&running, Some(opened.session_id)).await;
    assert_eq!((resumed.resumed, resumed.leader.as_deref()), (true, Some(GATEWAY)));
}

#[tokio::test]
async fn no_leader_is_named_when_its_node_has_no_gateway() {
    let running = start(None).await;
    assert_eq!(rest_leader(&running, "/v1/namespaces/ns/locks/l", &[]).await, (200, None));
    let mut locks = LocksServiceClient::new(running.channel.clone());
    let taken = locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap();
    assert_eq!(grpc_leader(taken.metadata()), None);
    assert_eq!(open_session(&running, None).await.leader, None);
}
