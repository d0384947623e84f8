//! gRPC messages that are wrong, and the codes that come back.

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, timestamp, with_key};
use crate::support::{AcquireRequest, LockClient, RestClient, TestEnv, frontends};

/// An acquire whose texts are bytes of any kind, as another client may send them.
#[derive(Clone, PartialEq, Message)]
struct RawAcquire {
    #[prost(bytes = "vec", tag = "1")]
    namespace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    process_id: Vec<u8>,
    #[prost(uint64, tag = "8")]
    ttl_ms: u64,
}

const ACQUIRE: &str = "/holdfast.v1.LocksService/AcquireLock";

async fn send<T: Message + 'static>(rest: &RestClient, path: &'static str, message: T) -> Result<(), Status> {
    let mut grpc = Grpc::new(channel(rest).await);
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<T, v1::AcquireLockResponse>::default();
    grpc.unary(with_key(message, &rest.key), PathAndQuery::from_static(path), codec).await.map(drop)
}

async fn test_env() -> TestEnv<frontends::grpc::Client> {
    TestEnv::open().await
}

fn acquire_message() -> v1::AcquireLockRequest {
    v1::AcquireLockRequest {
        namespace: "ns".into(),
        name: Some("l".into()),
        process_id: Some("p".into()),
        ttl_ms: Some(60_000),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_bad_field_of_a_message_is_refused_by_name() {
    let world = test_env().await;
    let mut locks = LocksServiceClient::new(channel(&world.rest).await);
    let far = Some(timestamp(i64::MAX));
    for (message, field) in [
        (v1::AcquireLockRequest { mode: 9, ..acquire_message() }, "mode"),
        (v1::AcquireLockRequest { name: None, ..acquire_message() }, "name"),
        (v1::AcquireLockRequest { path: vec!["l".into()], ..acquire_message() }, "path"),
        (v1::AcquireLockRequest { name: None, path: vec!["a".into(), String::new()], ..acquire_message() }, "path"),
        (v1::AcquireLockRequest { whole_namespace: true, ..acquire_message() }, "whole_namespace"),
        (v1::AcquireLockRequest { namespace: String::new(), ..acquire_message() }, "namespace"),
        (v1::AcquireLockRequest { process_id: None, ..acquire_message() }, "process_id"),
        (v1::AcquireLockRequest { session_id: Some("se_1".into()), ..acquire_message() }, "session_id"),
        (v1::AcquireLockRequest { holder: Some("h".into()), ..acquire_message() }, "holder"),
        (v1::AcquireLockRequest { wait_ms: 600_001, ..acquire_message() }, "wait_ms"),
        (v1::AcquireLockRequest { poll_ms: Some(0), ..acquire_message() }, "poll_ms"),
        (v1::AcquireLockRequest { fencing_token: Some(1), wait_ms: 1, ..acquire_message() }, "fencing_token"),
        (v1::AcquireLockRequest { fencing_token: Some(1), allow_upgrade: true, ..acquire_message() }, "fencing_token"),
        (v1::AcquireLockRequest { process_id: None, session_id: Some("se_1".into()), ..acquire_message() }, "ttl_ms"),
        (v1::AcquireLockRequest { ttl_ms: None, ..acquire_message() }, "ttl_ms"),
        (v1::AcquireLockRequest { ttl_ms: Some(0), ..acquire_message() }, "ttl_ms"),
        (v1::AcquireLockRequest { expires_at: far, ..acquire_message() }, "ttl_ms"),
        (v1::AcquireLockRequest { ttl_ms: None, expires_at: far, ..acquire_message() }, "expires_at"),
        (
            v1::AcquireLockRequest {
                ttl_ms: None,
                expires_at: Some(prost_types::Timestamp { seconds: 4_000_000_000, nanos: -1 }),
                ..acquire_message()
            },
            "expires_at",
        ),
        (
            v1::AcquireLockRequest {
                ttl_ms: None,
                expires_at: Some(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 }),
                ..acquire_message()
            },
            "expires_at",
        ),
    ] {
        let status = locks.acquire_lock(with_key(message, &world.rest.key)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(Failure::from_status(status).ids["field"], field);
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn bad_utf_8_in_a_message_is_the_callers_fault() {
    let world = test_env().await;
    let good = RawAcquire { namespace: b"ns".into(), name: b"l".into(), process_id: b"p".into(), ttl_ms: 60_000 };
    for bad in [
        RawAcquire { namespace: b"\xff".into(), ..good.clone() },
        RawAcquire { name: b"l\xc3".into(), ..good.clone() },
        RawAcquire { process_id: b"\xed\xa0\x80".into(), ..good.clone() },
        RawAcquire { name: b"\xc0\xaf".into(), ..good.clone() },
        RawAcquire { name: b"\xf0\x80\x80\xae".into(), ..good.clone() },
    ] {
        let status = send(&world.rest, ACQUIRE, bad).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert_eq!(Failure::from_status(status).code, "INVALID_ARGUMENT");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
    send(&world.rest, ACQUIRE, good).await.unwrap();
    assert_eq!(world.held_locks().await, ["l"]);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused() {
    let world = test_env().await;
    let large =
        RawAcquire { namespace: b"ns".into(), name: vec![b'x'; 70_000], process_id: b"p".into(), ttl_ms: 60_000 };
    let status = send(&world.rest, ACQUIRE, large).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(Failure::from_status(status).code, "PAYLOAD_TOO_LARGE");
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let world = test_env().await;
    for path in
        ["/holdfast.v1.LocksService/TakeLock", "/holdfast.v1.Nothing/AcquireLock", "/holdfast.internal.Node/Calls"]
    {
        assert_eq!(send(&world.rest, path, acquire_message()).await.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn every_code_has_its_grpc_status() {
    let world = test_env().await;
    let mut locks = LocksServiceClient::new(channel(&world.rest).await);
    let status = locks.acquire_lock(Request::new(acquire_message())).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::Unauthenticated, "UNAUTHENTICATED"));
    let status = locks.acquire_lock(with_key(acquire_message(), "nonsense")).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::Unauthenticated, "UNAUTHENTICATED"));
    let unknown = v1::AcquireLockRequest { namespace: "unknown".into(), ..acquire_message() };
    let status = locks.acquire_lock(with_key(unknown, &world.rest.key)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "namespace not found"));
    assert!(status.metadata().contains_key("holdfast-request-id"));
    assert_eq!(Failure::from_status(status).code, "NAMESPACE_NOT_FOUND");
    let operator = crate::support::operator_client(crate::support::server()).key;
    let status = locks.acquire_lock(with_key(acquire_message(), &operator)).await.unwrap_err();
    assert_eq!(
        (status.code(), Failure::from_status(status).code.as_str()),
        (Code::PermissionDenied, "PERMISSION_DENIED")
    );
    assert_eq!(world.client.create_namespace("ns", "").await.unwrap_err().code, "ALREADY_EXISTS");
}

#[tokio::test]
async fn a_bad_deadline_is_refused_and_a_good_one_is_taken() {
    let world = test_env().await;
    let mut locks = LocksServiceClient::new(channel(&world.rest).await);
    for (timeout, is_good) in [("5S", true), ("5000m", true), ("soon", false), ("5", false), ("123456789S", false)] {
        let mut request = with_key(acquire_message(), &world.rest.key);
        request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let outcome = locks.acquire_lock(request).await;
        assert_eq!(outcome.is_ok(), is_good, "{timeout}: {outcome:?}");
        if let Err(status) = outcome {
            assert_eq!(status.code(), Code::InvalidArgument, "{timeout}");
        }
    }
}

#[tokio::test]
async fn a_repeated_creation_over_grpc_answers_as_the_first_did() {
    let world = test_env().await;
    let mut namespaces = v1::namespaces_service_client::NamespacesServiceClient::new(channel(&world.rest).await);
    let mut create = async |key: &str| {
        let message = v1::CreateNamespaceRequest { name: "once".into(), ..Default::default() };
        let mut request = with_key(message, &world.rest.key);
        request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
        namespaces.create_namespace(request).await.map(tonic::Response::into_inner).map_err(Failure::from_status)
    };
    let first = create("once").await.unwrap();
    assert_eq!(create("once").await.unwrap(), first);
    assert_eq!(create("another").await.unwrap_err().code, "ALREADY_EXISTS");
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
}
