//! Callers that mean harm: connections that say nothing, heads and bodies that come byte by byte or do not end. Others
//! are served meanwhile, and nothing is lost.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use holdfast_testkit::{Metrics, Standalone, scratch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::metadata::MetadataValue;

use crate::support::{
    AcquireRequest, LockClient, RestClient, SessionSocket, TestEnv, create_tenant, frontends, raw, server, wait_until,
};

/// More than the service takes.
const IDLE_CONNECTIONS: usize = 10_050;
/// Files of the test itself beside them.
const RESERVED_FILES: u64 = 500;
/// Connections that drip.
const SLOW_CONNECTIONS: usize = 300;
/// How soon everybody else has to be served meanwhile.
const MAX_LATENCY: Duration = Duration::from_secs(5);
/// How long a connection may live that never finishes its first head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether this process may open so many connections.
fn raise_file_limit(connections: usize) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let needed = connections as u64 + RESERVED_FILES;
    setrlimit(Resource::Nofile, raised).is_ok() && limit.maximum.is_none_or(|maximum| maximum >= needed)
}

async fn metric(rest: &RestClient, name: &str) -> f64 {
    Metrics::read(rest.address).await.unwrap().sum(name)
}

async fn wait_between_bytes() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn ten_thousand_idle_connections_keep_nobody_out_and_take_nothing_away() {
    if !raise_file_limit(IDLE_CONNECTIONS) {
        return eprintln!("skipped: this process may not open {IDLE_CONNECTIONS} connections; see ulimit -n");
    }
    let server = Standalone::start(&scratch(), &[]);
    let tenant = create_tenant(&server).await;
    tenant.create_namespace("ns").await;
    let mut session = SessionSocket::connect(&tenant.rest).await;
    session.open_session(600_000).await;
    session.acquire("r", "l").await;
    let mut idle = Vec::with_capacity(IDLE_CONNECTIONS);
    for _ in 0..IDLE_CONNECTIONS {
        idle.push(TcpStream::connect(server.address()).await.unwrap());
    }
    // A caller that comes new, and one that has been there.
    for rest in [RestClient::new(server.address(), &tenant.rest.key), tenant.rest.clone()] {
        let asked = Instant::now();
        let lock = rest.call("GET /v1/namespaces/ns/locks/l").await.ok();
        assert_eq!(lock["lock"]["state"], "WRITE_LOCKED", "{lock}");
        assert!(asked.elapsed() < MAX_LATENCY, "{:?}", asked.elapsed());
    }
    session.expect_no_message().await;
    assert!(metric(&tenant.rest, "holdfast_connections_evicted_total").await >= 50.0);
    drop(idle);
    wait_until("the connections are gone", async || metric(&tenant.rest, "holdfast_connections").await < 10.0).await;
    session.expect_no_message().await;
}

/// Sends a byte now and then until the service ends the connection; how long that took.
async fn send_slowly(address: SocketAddr, head: &str) -> (Duration, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let begun = Instant::now();
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let mut answer = Vec::new();
    let dripping = async {
        while writing.write_all(b"x").await.is_ok() {
            wait_between_bytes().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = reading.read_to_end(&mut answer) => {}
        () = dripping => {}
    }
    (begun.elapsed(), String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn heads_that_come_byte_by_byte_are_cut_off_and_delay_nobody() {
    let tenant = create_tenant(server()).await;
    let address = tenant.rest.address;
    let head = "GET /v1/namespaces HTTP/1.1\r\nHost: t\r\nX-Slow: ";
    let slow: Vec<_> = (0..SLOW_CONNECTIONS).map(|_| tokio::spawn(send_slowly(address, head))).collect();
    for _ in 0..20 {
        let asked = Instant::now();
        tenant.rest.call("GET /v1/namespaces").await.ok();
        assert!(asked.elapsed() < MAX_LATENCY, "{:?}", asked.elapsed());
    }
    for dripped in slow {
        let (lived, answer) = timeout(HEAD_TIMEOUT, dripped).await.expect("it is cut off").unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "after {lived:?}: {answer}");
    }
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_refused() {
    let tenant = create_tenant(server()).await;
    let key = &tenant.rest.key;
    let head = format!(
        "POST /v1/namespaces HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
         Holdfast-Timeout-Ms: 600000\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n"
    );
    let (took, answer) = timeout(BODY_TIMEOUT, send_slowly(tenant.rest.address, &head)).await.expect("it is refused");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("the body ended early"), "after {took:?}: {answer}");
}

#[tokio::test]
async fn heads_that_are_too_large_are_refused_over_every_version_of_http() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    let key = &world.rest.key;
    let head = |more: &str| {
        format!(
            "GET /v1/namespaces HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n{more}\r\n"
        )
    };
    let many: String = (0..5_000).map(|number| format!("X-{number}: y\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "y".repeat(200_000));
    for more in [many, long] {
        let status = raw::send(world.rest.address, head(&more).as_bytes()).await.status;
        assert_eq!(status, 431);
    }
    let grpc = frontends::grpc::Client::connect(&world.rest).await;
    let mut request = frontends::grpc::with_key(holdfast_proto::v1::GetNamespaceRequest { name: "ns".to_owned() }, key);
    let long: MetadataValue<_> = "y".repeat(100_000).parse().unwrap();
    request.metadata_mut().insert("x-long", long);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", world.rest.address)).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut namespaces = holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient::new(channel);
    namespaces.get_namespace(request).await.unwrap_err();
    grpc.expect_granted(AcquireRequest::write("l", "p")).await;
    assert_eq!(world.held_locks().await, ["l"]);
}

#[tokio::test]
async fn requests_that_are_sent_without_reading_the_answers_delay_nobody() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let take = json!({"process_id": "p", "ttl_ms": 60_000});
    tenant.rest.json("POST /v1/namespaces/ns/locks/l/acquire", take).await.ok();
    let one = raw::request("GET", b"/v1/namespaces/ns/locks/l", &tenant.rest.key);
    let one = String::from_utf8(one).unwrap().replace("Connection: close\r\n", "");
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(tenant.rest.address).await.unwrap();
        // As many as the kernel takes: the service stops reading when its answers are not read.
        let many = one.repeat(500);
        let _ = timeout(Duration::from_millis(50), stream.write_all(many.as_bytes())).await;
        deaf.push(stream);
    }
    let asked = Instant::now();
    tenant.rest.call("GET /v1/namespaces/ns/locks/l").await.ok();
    assert!(asked.elapsed() < MAX_LATENCY, "{:?}", asked.elapsed());
}
