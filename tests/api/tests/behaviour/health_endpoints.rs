//! What the process says about itself.

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::support::frontends::grpc::channel;
use crate::support::{RestClient, create_tenant, server};

const SERVICES: [&str; 4] = [
    "holdfast.v1.AccountsService",
    "holdfast.v1.NamespacesService",
    "holdfast.v1.LocksService",
    "com.evrblk.monstera_example.gatewaypb.LocksServiceApi",
];

/// A client without a credential.
fn anonymous() -> RestClient {
    RestClient::new(server().address(), "")
}

async fn reflect(question: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let mut client = ServerReflectionClient::new(channel(&anonymous()).await);
    let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let answer: ServerReflectionResponse = answers.message().await.unwrap().unwrap();
    answer.message_response.unwrap()
}

#[tokio::test]
async fn reflection_lists_every_service_and_describes_it() {
    let MessageResponse::ListServicesResponse(list) = reflect(MessageRequest::ListServices(String::new())).await else {
        panic!("services are listed");
    };
    let listed: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for service in SERVICES {
        assert!(listed.iter().any(|name| name == service), "{service} in {listed:?}");
        let described = reflect(MessageRequest::FileContainingSymbol(service.to_owned())).await;
        assert!(matches!(described, MessageResponse::FileDescriptorResponse(_)), "{service}");
    }
    assert!(!listed.iter().any(|name| name.contains("internal")), "{listed:?}");
}

#[tokio::test]
async fn the_health_service_says_serving_for_every_service() {
    let mut health = HealthClient::new(channel(&anonymous()).await);
    for service in SERVICES.into_iter().chain([""]) {
        let answer = health.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unknown = health.check(HealthCheckRequest { service: "unknown".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn a_process_that_serves_is_up_and_ready_for_everybody() {
    for path in ["/healthz", "/readyz"] {
        let answer = anonymous().call(&format!("GET {path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn metrics_count_what_was_done_and_name_no_tenant() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("secret-namespace").await;
    tenant.rest.call("GET /v1/namespaces/secret-namespace/locks/secret-lock").await.ok();
    tenant.rest.call("GET /made/up").await.expect_error("NOT_FOUND");
    let answer = anonymous().call("GET /metrics").await;
    assert_eq!((answer.status, answer.header("content-type").starts_with("text/plain")), (200, true));
    for line in [
        "holdfast_http_requests_total{route=\"/v1/namespaces/{namespace}/locks/{name}\",method=\"GET\",code=\"200\"}",
        "holdfast_http_requests_total{route=\"unmatched\",method=\"GET\",code=\"404\"}",
        "holdfast_build_info{program=\"holdfast-standalone\"",
        "holdfast_storage_syncs_total ",
        "holdfast_connections ",
        "process_resident_memory_bytes ",
    ] {
        assert!(answer.text.contains(line), "{line} in {}", answer.text);
    }
    for secret in ["secret-", "made/up", &tenant.account, &tenant.rest.key] {
        assert!(!answer.text.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn metrics_are_not_for_those_who_come_through_a_proxy() {
    let proxied = [("x-forwarded-for", "10.1.2.3")];
    anonymous().send("GET /metrics", &proxied, Default::default()).await.expect_error("UNAUTHENTICATED");
    let operator = crate::support::operator_client(server());
    assert_eq!(operator.send("GET /metrics", &proxied, Default::default()).await.status, 200);
}

#[tokio::test]
async fn answers_of_other_origins_are_not_allowed() {
    let rest = create_tenant(server()).await.rest;
    for line in ["GET /v1/namespaces", "OPTIONS /v1/namespaces"] {
        let origin = [("origin", "https://example.com"), ("access-control-request-method", "GET")];
        let answer = rest.send(line, &origin, Default::default()).await;
        assert!(
            answer.headers.keys().all(|name| !name.as_str().starts_with("access-control-")),
            "{:?}",
            answer.headers
        );
    }
}
