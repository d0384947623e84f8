use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use holdfast_proto::dlocks::locks_service_api_client::LocksServiceApiClient;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_proto::{dlocks as d, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus as Served;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_types::StatusExt;

use super::*;
use crate::test_cluster::{TestCluster, TestTenant};

struct TestServer {
    cluster: TestCluster,
    tenant: TestTenant,
    address: SocketAddr,
    channel: Channel,
    rendered: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), DescriptorsError>>,
}

impl TestServer {
    async fn start(dlocks_account_metadata: bool) -> Self {
        Self::with_cluster(TestCluster::start().await, dlocks_account_metadata).await
    }

    async fn with_cluster(cluster: TestCluster, dlocks_account_metadata: bool) -> Self {
        Self::with_connections(cluster, dlocks_account_metadata, 100).await
    }

    async fn with_connections(cluster: TestCluster, dlocks_account_metadata: bool, max_connections: usize) -> Self {
        let tenant = cluster.tenant("server@example.com").await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let rendered = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rendered);
        let metrics: MetricsRenderer = Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            "holdfast_up 1\n".to_owned()
        });
        let server_options = ServerOptions {
            service: cluster.service.clone(),
            dlocks_account_metadata,
            metrics,
            tls: None,
            max_connections,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, server_options, async move {
            let _ = stopped.await;
        }));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { cluster, tenant, address, channel, rendered, stop, served }
    }

    /// Returns a request with the tenant's key.
    fn call<T>(&self, message: T) -> tonic::Request<T> {
        with(message, "authorization", &format!("Bearer {}", self.tenant.api_key))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn make_namespace(&self) {
        let mut namespaces = NamespacesServiceClient::new(self.channel.clone());
        let request = v1::CreateNamespaceRequest { name: "ns".into(), ..Default::default() };
        namespaces.create_namespace(self.call(request)).await.unwrap();
    }
}

fn with<T>(message: T, name: &'static str, value: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().append(name, value.parse().unwrap());
    request
}

fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().unwrap();
    assert_eq!(info.domain, "holdfast");
    info.reason
}

fn acquire(process_id: &str, mode: v1::Mode) -> v1::AcquireLockRequest {
    v1::AcquireLockRequest {
        namespace: "ns".into(),
        name: Some("a/b".into()),
        process_id: Some(process_id.into()),
        mode: mode.into(),
        ttl_ms: Some(60_000),
        ..Default::default()
    }
}

#[tokio::test]
async fn one_port_serves_rest_over_both_versions_of_http_and_grpc() {
    let running = TestServer::start(false).await;
    running.make_namespace().await;
    for client in [reqwest::Client::new(), reqwest::Client::builder().http2_prior_knowledge().build().unwrap()] {
        let answer = client.get(running.url("/v1/namespaces/ns")).bearer_auth(&running.tenant.api_key);
        let namespace: serde_json::Value = answer.send().await.unwrap().json().await.unwrap();
        assert_eq!(namespace["name"], "ns");
        assert_eq!(client.get(running.url("/healthz")).send().await.unwrap().status(), 200);
        let metrics = client.get(running.url("/metrics")).send().await.unwrap().text().await.unwrap();
        assert_eq!(metrics, "holdfast_up 1\n");
    }
    assert_eq!(running.rendered.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_lock_is_taken_refused_checked_listed_released_and_deleted_over_grpc() {
    let running = TestServer::start(false).await;
    running.make_namespace().await;
    let mut locks = LocksServiceClient::new(running.channel.clone());
    let taken = locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap().into_inner();
    assert!(taken.success);
    let token = taken.fencing_token.unwrap();
    let holder = taken.lock.unwrap().write_lock_holder.unwrap();
    assert_eq!((holder.process_id.as_str(), holder.fencing_token), ("p", token));
    assert!(holder.remaining_ms.unwrap() <= 60_000 && holder.expires_at.is_some());

    let refused = locks.acquire_lock(running.call(acquire("q", v1::Mode::Read))).await.unwrap().into_inner();
    let reason = refused.reason.unwrap();
    assert!(!refused.success && refused.fencing_token.is_none());
    assert_eq!(reason.code(), v1::refusal::Code::Held);
    assert_eq!(reason.blockers[0].holder.as_ref().unwrap().process_id, "p");

    let named = (String::from("ns"), Some(String::from("a/b")), Vec::new());
    let (namespace, name, path) = named.clone();
    let check = v1::CheckLockRequest { namespace, name, path, fencing_token: token, ..Default::default() };
    assert!(locks.check_lock(running.call(check)).await.unwrap().into_inner().current);
    let list = v1::ListLocksRequest { namespace: "ns".into(), ..Default::default() };
    let listed = locks.list_locks(running.call(list)).await.unwrap().into_inner();
    assert_eq!((listed.locks.len(), listed.locks[0].name()), (1, "a/b"));
    let (namespace, _, _) = named.clone();
    let by_path = v1::GetLockRequest { namespace, path: vec!["a/b".into()], ..Default::default() };
    let found = locks.get_lock(running.call(by_path)).await.unwrap().into_inner().lock.unwrap();
    assert_eq!(found.state(), v1::lock::State::WriteLocked);
    let (namespace, name, path) = named.clone();
    let release = v1::ReleaseLockRequest { namespace, name, path, process_id: Some("p".into()), ..Default::default() };
    let released = locks.release_lock(running.call(release)).await.unwrap().into_inner();
    assert!(released.released);
    assert_eq!(released.lock.unwrap().state(), v1::lock::State::Unlocked);
    let (namespace, name, path) = named;
    let delete = v1::DeleteLockRequest { namespace, name, path, ..Default::default() };
    locks.delete_lock(running.call(delete)).await.unwrap();
}

#[tokio::test]
async fn accounts_and_keys_are_managed_over_grpc() {
    let running = TestServer::start(false).await;
    let operator = format!("Bearer {}", running.cluster.operator);
    let mut accounts = AccountsServiceClient::new(running.channel.clone());
    let request =
        v1::CreateAccountRequest { email: "g@example.com".into(), full_name: "G".into(), ..Default::default() };
    let made = accounts.create_account(with(request, "authorization", &operator)).await.unwrap().into_inner();
    assert_eq!((made.max_number_of_namespaces, made.status()), (25, v1::account::Status::Active));
    let request = v1::UpdateAccountRequest {
        id: made.id.clone(),
        limits: Some(v1::Limits { max_ttl_ms: Some(1_000), ..Default::default() }),
        ..Default::default()
    };
    let changed = accounts.update_account(with(request, "authorization", &operator)).await.unwrap().into_inner();
    let limits = changed.limits.unwrap();
    assert_eq!((limits.max_ttl_ms, limits.max_path_depth), (Some(1_000), Some(16)));
    let request = v1::CreateApiKeyRequest { account_id: made.id.clone(), ..Default::default() };
    let key = accounts.create_api_key(with(request, "authorization", &operator)).await.unwrap().into_inner();
    assert!(key.api_key().starts_with("hf_") && key.scopes.len() == 5);
    let request = v1::ListApiKeysRequest { account_id: made.id.clone() };
    let listed = accounts.list_api_keys(with(request, "authorization", &operator)).await.unwrap().into_inner();
    assert_eq!((listed.api_keys.len(), listed.api_keys[0].api_key.clone()), (1, None));
    let request = v1::GetUsageRequest { account_id: made.id };
    let usage = accounts.get_usage(with(request, "authorization", &operator)).await.unwrap().into_inner();
    let keys = usage.limit_usage.iter().find(|row| row.limit == "max_api_keys").unwrap();
    assert_eq!((keys.used, keys.max, keys.of_this_gateway), (Some(1), 1_000, false));
    let refused = accounts.list_accounts(running.call(v1::ListAccountsRequest::default())).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused)), (Code::PermissionDenied, "PERMISSION_DENIED".to_owned()));
}

#[tokio::test]
async fn grpc_errors_carry_the_public_code_and_the_request_id() {
    let running = TestServer::start(false).await;
    let mut locks = LocksServiceClient::new(running.channel.clone());
    let refused = locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::NotFound, "namespace not found"));
    assert_eq!(reason(&refused), "NAMESPACE_NOT_FOUND");
    let refused = locks.acquire_lock(acquire("p", v1::Mode::Write)).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused)), (Code::Unauthenticated, "UNAUTHENTICATED".to_owned()));
    let long = v1::GetLockRequest { name: Some("x".repeat(70_000)), ..Default::default() };
    let mut request = running.call(long);
    request.metadata_mut().insert("holdfast-request-id", MetadataValue::from_static("order-7"));
    let refused = locks.get_lock(request).await.unwrap_err();
    assert_eq!(reason(&refused), "PAYLOAD_TOO_LARGE");
    assert_eq!(refused.metadata().get("holdfast-request-id").unwrap(), "order-7");
    let mut request = running.call(v1::GetLockRequest::default());
    request.metadata_mut().insert("grpc-timeout", MetadataValue::from_static("soon"));
    assert_eq!(reason(&locks.get_lock(request).await.unwrap_err()), "INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_grpc_message_that_is_not_utf8_is_the_callers_fault() {
    let running = TestServer::start(false).await;
    // One message, not compressed, of three bytes: field 1, a text of one byte that is invalid UTF-8.
    let body = vec![0, 0, 0, 0, 3, 0x0a, 1, 0xff];
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let request = client.post(running.url("/holdfast.v1.LocksService/GetLock")).bearer_auth(&running.tenant.api_key);
    let answer = request.header("content-type", "application/grpc").header("te", "trailers").body(body);
    let refused = Status::from_header_map(answer.send().await.unwrap().headers()).unwrap();
    assert_eq!((refused.code(), reason(&refused)), (Code::InvalidArgument, "INVALID_ARGUMENT".to_owned()));
}

#[tokio::test]
async fn health_and_reflection_are_served_without_a_key() {
    let running = TestServer::start(false).await;
    let mut health = HealthClient::new(running.channel.clone());
    let service = "holdfast.v1.LocksService".to_owned();
    let mut watch = health.watch(HealthCheckRequest { service }).await.unwrap().into_inner();
    let serving = |seen: &HealthCheckResponse| seen.status() == Served::Serving;
    // The test cluster's accounts shard replies, so the gateway becomes ready.
    while !serving(&watch.next().await.unwrap().unwrap()) {}

    let mut reflection = ServerReflectionClient::new(running.channel.clone());
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = reflection.server_reflection_info(futures::stream::iter([ask])).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) = answers.next().await.unwrap().unwrap().message_response
    else {
        panic!("services are listed");
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in HEALTH_SERVICES.iter().filter(|name| !name.is_empty()) {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }
}

#[tokio::test]
async fn a_dlocks_client_runs_unchanged() {
    let running = TestServer::start(true).await;
    let mut client = LocksServiceApiClient::new(running.channel.clone());
    let account = running.tenant.account_id.clone();
    fn named<T>(message: T, account: &str) -> tonic::Request<T> {
        with(message, "account-id", account)
    }
    let namespace_name = String::from("ns");
    let request = d::CreateNamespaceRequest { name: "ns".into(), description: "d".into() };
    let made = client.create_namespace(named(request.clone(), &account)).await.unwrap().into_inner().namespace.unwrap();
    assert!(made.created_at > 1_600_000_000_000_000_000 && made.description == "d");
    assert_eq!(client.create_namespace(named(request, &account)).await.unwrap_err().code(), Code::AlreadyExists);
    let listed = client.list_namespaces(named(d::ListNamespacesRequest {}, &account)).await.unwrap().into_inner();
    assert_eq!(listed.namespaces, [made]);

    let in_a_minute = holdfast_api::Timestamp::now().as_nanos() + 60_000_000_123;
    let request = |process_id: &str, expires_at| d::AcquireLockRequest {
        namespace_name: "ns".into(),
        lock_name: "l".into(),
        process_id: process_id.into(),
        write_lock: true,
        expires_at,
    };
    let taken = client.acquire_lock(named(request("p", in_a_minute), &account)).await.unwrap().into_inner();
    let lock = taken.lock.unwrap();
    assert!(taken.success && lock.state() == d::LockState::WriteLocked && lock.name == "l");
    assert_eq!(lock.write_lock_holder.unwrap().expires_at, in_a_minute);
    let refused = client.acquire_lock(named(request("q", in_a_minute), &account)).await.unwrap().into_inner();
    assert!(!refused.success);
    assert_eq!(refused.lock.unwrap().write_lock_holder.unwrap().process_id, "p");
    let past = client.acquire_lock(named(request("q", 1), &account)).await.unwrap_err();
    assert_eq!((past.code(), reason(&past)), (Code::InvalidArgument, "INVALID_ARGUMENT".to_owned()));

    let request = d::ReleaseLockRequest { namespace_name, lock_name: "l".into(), process_id: "p".into() };
    let released = client.release_lock(named(request, &account)).await.unwrap().into_inner().lock.unwrap();
    assert_eq!(released, d::Lock { name: "l".into(), ..Default::default() });
    let request = d::GetLockRequest { namespace_name: "none".into(), lock_name: "l".into() };
    let missing = client.get_lock(named(request.clone(), &account)).await.unwrap_err();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, "namespace not found"));
    let unknown = client.get_lock(named(request.clone(), "0000000000000001")).await.unwrap_err();
    assert_eq!((unknown.code(), reason(&unknown)), (Code::NotFound, "ACCOUNT_NOT_FOUND".to_owned()));
    assert_eq!(client.get_lock(request.clone()).await.unwrap_err().code(), Code::Unauthenticated);
    let request = d::GetLockRequest { namespace_name: "ns".into(), ..request };
    assert!(client.get_lock(running.call(request)).await.is_ok());
}

#[tokio::test]
async fn an_account_at_its_limit_of_connections_is_refused_and_another_is_served() {
    let running = TestServer::start(false).await;
    let change = serde_json::json!({"limits": {"max_connections": 1}});
    let account = running.url(&format!("/v1/accounts/{}", running.tenant.account_id));
    let changing = reqwest::Client::new().patch(account).bearer_auth(&running.cluster.operator).json(&change);
    assert_eq!(changing.send().await.unwrap().status(), 200);
    let list = async |client: &reqwest::Client, key: &str| {
        client.get(running.url("/v1/namespaces")).bearer_auth(key).send().await.unwrap()
    };
    // Over HTTP/2, all calls of a client share a connection.
    let first = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    assert_eq!(list(&first, &running.tenant.api_key).await.status(), 200);
    // The gateway may know the account as it was before.
    let refused = loop {
        let answer = list(&reqwest::Client::new(), &running.tenant.api_key).await;
        if answer.status() != 200 {
            break answer;
        }
    };
    assert_eq!((refused.status().as_u16(), &refused.headers()[CONNECTION]), (429, &HeaderValue::from_static("close")));
    let problem: serde_json::Value = refused.json().await.unwrap();
    assert_eq!((&problem["limit"], &problem["max"]), (&"max_connections".into(), &serde_json::Value::from(1)));
    let neighbour = running.cluster.tenant("neighbour@example.com").await;
    assert_eq!(list(&reqwest::Client::new(), &neighbour.api_key).await.status(), 200);
    assert_eq!(list(&first, &running.tenant.api_key).await.status(), 200, "the connection that it has goes on");
}

#[tokio::test]
async fn calls_in_flight_are_answered_before_a_stop() {
    let running = TestServer::start(false).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = "POST /v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 13\r\n";
    let head = format!("{head}authorization: Bearer {}\r\nexpect: 100-continue\r\n\r\n", running.tenant.api_key);
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server requests the body: the call is in flight.
    let mut seen = [0; 64];
    let read = stream.read(&mut seen).await.unwrap();
    assert!(seen[..read].starts_with(b"HTTP/1.1 100"));
    running.stop.send(()).unwrap();
    // No new connection is accepted once the listener is closed.
    while TcpStream::connect(running.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(br#"{"name":"ns"}"#).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    drop(running.channel);
    running.served.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_comes_as_the_process_stops_is_answered_and_told_that_it_is_the_last() {
    let running = TestServer::start(false).await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let call = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(call).await.unwrap();
    let mut seen = [0; 1_024];
    let read = stream.read(&mut seen).await.unwrap();
    let first = String::from_utf8_lossy(&seen[..read]).to_lowercase();
    assert!(first.starts_with("http/1.1 200") && !first.contains("connection: close"), "{first}");
    running.stop.send(()).unwrap();
    while TcpStream::connect(running.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(call).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let answer = answer.to_lowercase();
    assert!(answer.starts_with("http/1.1 200") && answer.contains("connection: close"), "{answer}");
    drop(running.channel);
    running.served.await.unwrap().unwrap();
}

#[test]
fn grpc_is_told_by_its_content_type_and_version() {
    let told = |version, content_type: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        is_grpc(version, &headers)
    };
    assert!(told(Version::HTTP_2, "application/grpc"));
    assert!(told(Version::HTTP_2, "application/grpc+proto"));
    assert!(!told(Version::HTTP_2, "application/grpc-web"));
    assert!(!told(Version::HTTP_2, "application/json"));
    assert!(!told(Version::HTTP_11, "application/grpc"));
    assert!(!is_grpc(Version::HTTP_2, &HeaderMap::new()));
}

#[cfg(test)]
#[path = "server_eviction_tests.rs"]
mod eviction;
#[cfg(test)]
#[path = "server_leader_tests.rs"]
mod leader;
#[cfg(test)]
#[path = "server_locks_tests.rs"]
mod locks;
