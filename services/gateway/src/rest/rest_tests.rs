use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::get;
use holdfast_api::validate::MAX_BODY_BYTES;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::test_cluster::{TestCluster, TestTenant};

#[derive(Clone)]
pub(super) struct TestApi {
    router: Router,
    cluster: Arc<TestCluster>,
    tenant: TestTenant,
}

pub(super) struct TestResponse {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    pub(super) body: Value,
}

impl TestResponse {
    pub(super) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn send(router: &Router, request: Request<Body>) -> TestResponse {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    if parts.status.is_client_error() || parts.status.is_server_error() {
        assert_eq!(parts.headers["content-type"], "application/problem+json");
        for member in ["type", "title", "code", "detail"] {
            assert!(body[member].is_string(), "{member}: {body}");
        }
        assert_eq!(body["status"], parts.status.as_u16());
    }
    assert!(parts.headers.contains_key("holdfast-request-id"));
    TestResponse { status: parts.status, headers: parts.headers, body }
}

impl TestApi {
    pub(super) async fn start() -> Self {
        let cluster = Arc::new(TestCluster::start().await);
        let tenant = cluster.tenant("door@example.com").await;
        let api = Self { router: with_middleware(routes(cluster.service.clone(), Probes::none())), cluster, tenant };
        let made = api.call("POST /v1/namespaces", Some(json!({"name": "ns"}))).await;
        assert_eq!(made.status, 201, "{}", made.body);
        api
    }

    /// Sends a call of the tenant.
    pub(super) async fn call(&self, line: &str, body: Option<Value>) -> TestResponse {
        self.call_as(&self.tenant.api_key, line, body).await
    }

    async fn call_as(&self, bearer: &str, line: &str, body: Option<Value>) -> TestResponse {
        self.call_with(bearer, &[], line, body).await
    }

    /// Sends a call of the tenant with this timeout.
    pub(super) async fn call_within(&self, timeout_ms: &str, line: &str, body: Option<Value>) -> TestResponse {
        self.call_with(&self.tenant.api_key, &[("holdfast-timeout-ms", timeout_ms)], line, body).await
    }

    async fn call_with(&self, bearer: &str, headers: &[(&str, &str)], line: &str, body: Option<Value>) -> TestResponse {
        let (method, path) = line.split_once(' ').unwrap();
        let bearer = format!("Bearer {bearer}");
        let mut request = Request::builder().method(method).uri(path).header("authorization", bearer);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        send(&self.router, request.unwrap()).await
    }

    pub(super) async fn expect_error(&self, line: &str, body: Option<Value>, code: Code) -> TestResponse {
        let got = self.call(line, body).await;
        assert_eq!((got.code(), got.status.as_u16()), (code.name(), code.http_status()), "{line}: {}", got.body);
        got
    }
}

fn acquire_body(process_id: &str) -> Option<Value> {
    Some(json!({"process_id": process_id, "ttl_ms": 60_000}))
}

#[tokio::test]
async fn a_name_in_a_path_is_one_segment_whatever_it_contains() {
    let api = TestApi::start().await;
    for (path, name) in [
        ("a%2Fb", "a/b"),
        ("..", ".."),
        ("%2e%2e", ".."),
        (".", "."),
        ("a%20b+c", "a b+c"),
        ("%C3%BC", "ü"),
        ("acquire", "acquire"),
        ("%252F", "%2F"),
    ] {
        let got = api.call(&format!("POST /v1/namespaces/ns/locks/{path}/acquire"), acquire_body("p")).await;
        assert_eq!(got.body["lock"]["name"], name, "{}", got.body);
        let got = api.call(&format!("GET /v1/namespaces/ns/locks/{path}"), None).await;
        assert_eq!(got.body["lock"]["state"], "WRITE_LOCKED", "{}", got.body);
        assert_eq!(got.body["lock"]["path"], json!([name]));
    }
}

#[tokio::test]
async fn a_name_that_is_no_name_is_refused() {
    let api = TestApi::start().await;
    let too_long = "x".repeat(129);
    for bad in ["%ff", "%00", "", too_long.as_str()] {
        api.expect_error(&format!("GET /v1/namespaces/ns/locks/{bad}"), None, Code::InvalidArgument).await;
        let line = format!("POST /v1/namespaces/ns/locks/{bad}/acquire");
        api.expect_error(&line, acquire_body("p"), Code::InvalidArgument).await;
        api.expect_error(&format!("GET /v1/namespaces/{bad}/locks/l"), None, Code::InvalidArgument).await;
    }
}

#[tokio::test]
async fn a_lock_is_taken_refused_checked_listed_released_and_deleted() {
    let api = TestApi::start().await;
    let lock = "/v1/namespaces/ns/locks/l";
    let body = json!({"process_id": "p", "expires_at": "2099-01-01T00:00:00Z", "metadata": {"k": "v"}});
    api.expect_error(&format!("POST {lock}/acquire"), Some(body), Code::InvalidArgument).await;
    let body = json!({"process_id": "p", "ttl_ms": 60_000, "metadata": {"k": "v"}, "wait_ms": 0, "poll_ms": 5});
    let got = api.call(&format!("POST {lock}/acquire"), Some(body)).await;
    assert_eq!((got.status.as_u16(), &got.body["success"]), (200, &json!(true)), "{}", got.body);
    let token = got.body["fencing_token"].as_u64().unwrap();
    let holder = &got.body["lock"]["write_lock_holder"];
    assert_eq!(holder["metadata"], json!({"k": "v"}));
    for instant in [&holder["locked_at"], &holder["expires_at"], &got.body["lock"]["locked_at"]] {
        let text = instant.as_str().unwrap();
        assert!(text.len() == 24 && text.ends_with('Z') && &text[19..20] == ".", "{text}");
    }

    let got = api.call(&format!("POST {lock}/acquire"), acquire_body("q")).await;
    assert_eq!((got.status.as_u16(), &got.body["success"]), (200, &json!(false)));
    assert_eq!(got.body["reason"]["code"], "HELD");
    assert_eq!(got.body["reason"]["blockers"][0]["process_id"], "p");
    assert!(got.body.get("fencing_token").is_none());

    let got = api.call(&format!("POST {lock}/check"), Some(json!({"fencing_token": token}))).await;
    assert_eq!(got.body["current"], true);
    let got = api.call("GET /v1/namespaces/ns/locks?prefix=l&page_size=1", None).await;
    assert_eq!((&got.body["locks"][0]["name"], &got.body["next_page_token"]), (&json!("l"), &Value::Null));
    let got = api.call(&format!("POST {lock}/release"), Some(json!({"process_id": "q"}))).await;
    assert_eq!(got.body["released"], false);
    let body = json!({"process_id": "p", "fencing_token": token});
    let got = api.call(&format!("POST {lock}/release"), Some(body)).await;
    assert_eq!((&got.body["released"], &got.body["lock"]["state"]), (&json!(true), &json!("UNLOCKED")));
    let got = api.call(&format!("DELETE {lock}"), None).await;
    assert_eq!((got.status.as_u16(), got.body), (204, Value::Null));
}

#[tokio::test]
async fn the_operator_makes_reads_changes_and_deletes_accounts_and_keys() {
    let api = TestApi::start().await;
    let operator = &api.cluster.operator;
    let body = json!({"email": "New@Example.com ", "full_name": "New"});
    let got = api.call_as(operator, "POST /v1/accounts", Some(body.clone())).await;
    assert_eq!((got.status.as_u16(), &got.body["email"]), (201, &json!("new@example.com")), "{}", got.body);
    let account = format!("/v1/accounts/{}", got.body["id"].as_str().unwrap());
    let got = api.call_as(operator, "POST /v1/accounts", Some(body)).await;
    assert_eq!(got.code(), "ALREADY_EXISTS");
    let change = json!({"status": "SUSPENDED", "limits": {"max_ttl_ms": 1_000}});
    let got = api.call_as(operator, &format!("PATCH {account}"), Some(change)).await;
    assert_eq!((&got.body["status"], &got.body["limits"]["max_ttl_ms"]), (&json!("SUSPENDED"), &json!(1_000)));
    assert_eq!(got.body["limits"]["max_claims_per_request"], 64);
    let got = api.call_as(operator, "GET /v1/accounts?page_size=1", None).await;
    assert_eq!(got.body["accounts"].as_array().unwrap().len(), 1);
    assert!(got.body["next_page_token"].is_string());

    let got = api.call_as(operator, &format!("POST {account}/api-keys"), None).await;
    assert_eq!(got.status, 201, "{}", got.body);
    assert!(got.body["api_key"].as_str().unwrap().starts_with("hf_"));
    assert_eq!(got.header("cache-control"), "no-store");
    let key = format!("{account}/api-keys/{}", got.body["key_id"].as_str().unwrap());
    let got = api.call_as(operator, &format!("GET {account}/api-keys"), None).await;
    assert!(got.body["api_keys"][0].get("api_key").is_none());
    assert_eq!(api.call_as(operator, &format!("DELETE {key}"), None).await.status, 204);
    assert_eq!(api.call_as(operator, &format!("DELETE {key}"), None).await.code(), "API_KEY_NOT_FOUND");
    assert_eq!(api.call_as(operator, &format!("DELETE {account}"), None).await.status, 204);
    assert_eq!(api.call_as(operator, &format!("GET {account}"), None).await.code(), "ACCOUNT_NOT_FOUND");
    api.expect_error("GET /v1/accounts", None, Code::PermissionDenied).await;
}

#[tokio::test]
async fn a_tenant_makes_its_own_keys_and_namespaces() {
    let api = TestApi::start().await;
    let body = json!({"description": "reader", "scopes": ["locks:read"], "namespaces": ["ns"]});
    let got = api.call("POST /v1/api-keys", Some(body)).await;
    assert_eq!((got.status.as_u16(), &got.body["scopes"]), (201, &json!(["locks:read"])), "{}", got.body);
    let reader = got.body["api_key"].as_str().unwrap().to_owned();
    let got = api.call_as(&reader, "POST /v1/namespaces/ns/locks/l/acquire", acquire_body("p")).await;
    assert_eq!(got.code(), "PERMISSION_DENIED");
    assert_eq!(api.call_as(&reader, "GET /v1/namespaces/ns/locks/l", None).await.status, 200);

    let got = api.call("PATCH /v1/namespaces/ns", Some(json!({"description": "mine"}))).await;
    assert_eq!(got.body["description"], "mine");
    let first = got.body["id"].as_str().unwrap().to_owned();
    api.expect_error("POST /v1/namespaces", Some(json!({"name": "ns"})), Code::AlreadyExists).await;
    assert_eq!(api.call("POST /v1/namespaces", Some(json!({"name": "second"}))).await.status, 201);
    api.expect_error("POST /v1/namespaces", Some(json!({"name": "third"})), Code::QuotaExceeded).await;
    let line = "DELETE /v1/namespaces/ns?id=0000000000000000";
    api.expect_error(line, None, Code::NamespaceNotFound).await;
    assert_eq!(api.call(&format!("DELETE /v1/namespaces/ns?id={first}"), None).await.status, 204);
    let got =
        api.expect_error("POST /v1/namespaces/ns/locks/l/acquire", acquire_body("p"), Code::NamespaceNotFound).await;
    assert_eq!(got.body["detail"], "namespace not found");
}

#[tokio::test]
async fn nobody_is_let_in_without_a_credential() {
    let api = TestApi::start().await;
    for bearer in ["", "nonsense", "hf_abc_def", "hfop_00"] {
        let got = api.call_as(bearer, "GET /v1/namespaces", None).await;
        assert_eq!((got.code(), got.header("www-authenticate")), ("UNAUTHENTICATED", "Bearer realm=\"holdfast\""));
    }
    let request = Request::builder().uri("/v1/namespaces").body(Body::empty()).unwrap();
    assert_eq!(send(&api.router, request).await.code(), "UNAUTHENTICATED");
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_are_problems() {
    let api = TestApi::start().await;
    for line in [
        "GET /",
        "GET /v1",
        "GET /v2/namespaces",
        "GET /v1/usages",
        "POST /v1/namespaces/ns/lock-sets",
        "POST /v1/namespaces/ns/lock-sets/list",
    ] {
        api.expect_error(line, None, Code::NotFound).await;
    }
    let got = api.expect_error("PUT /v1/namespaces/ns", None, Code::MethodNotAllowed).await;
    let mut allowed: Vec<&str> = got.header("allow").split(',').collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["DELETE", "GET", "HEAD", "PATCH"]);
    api.expect_error("GET /v1/namespaces/ns/locks/l/acquire", None, Code::MethodNotAllowed).await;
    let got = api.call("OPTIONS /v1/namespaces/ns/locks/l/acquire", None).await;
    assert_eq!((got.status.as_u16(), got.header("allow")), (204, "POST"));
    assert_eq!(got.header("access-control-allow-origin"), "");
    let got = api.call("HEAD /v1/namespaces", None).await;
    assert_eq!((got.status.as_u16(), got.body), (200, Value::Null));
}

#[tokio::test]
async fn bodies_that_are_too_large_or_not_json_are_refused() {
    let api = TestApi::start().await;
    let send_raw = async |content_type: &str, body: Body| {
        let authorization = format!("Bearer {}", api.tenant.api_key);
        let request = Request::post("/v1/namespaces")
            .header("authorization", authorization)
            .header("content-type", content_type)
            .body(body);
        send(&api.router, request.unwrap()).await
    };
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(MAX_BODY_BYTES));
    let chunks = futures::stream::iter([Ok::<_, std::io::Error>(large.clone())]);
    assert_eq!(send_raw("application/json", Body::from(large)).await.code(), "PAYLOAD_TOO_LARGE");
    assert_eq!(send_raw("application/json", Body::from_stream(chunks)).await.code(), "PAYLOAD_TOO_LARGE");
    assert_eq!(send_raw("text/plain", Body::from("{}")).await.code(), "UNSUPPORTED_MEDIA_TYPE");
    assert_eq!(send_raw("application/json", Body::from("{")).await.code(), "INVALID_ARGUMENT");
    let got = api.expect_error("GET /v1/namespaces?page_sise=1", None, Code::InvalidArgument).await;
    assert_eq!(got.body["field"], "page_sise");
}

#[tokio::test]
async fn an_answer_carries_the_callers_request_id() {
    let api = TestApi::start().await;
    let request = Request::builder().uri("/v1/none").header("holdfast-request-id", "order-7").body(Body::empty());
    assert_eq!(send(&api.router, request.unwrap()).await.header("holdfast-request-id"), "order-7");
    let request = Request::builder().uri("/v1/none").header("holdfast-request-id", "no spaces").body(Body::empty());
    assert_eq!(send(&api.router, request.unwrap()).await.header("holdfast-request-id").len(), 32);
}

#[tokio::test]
async fn a_repeated_creation_with_the_same_idempotency_key_answers_as_the_first_did() {
    let api = TestApi::start().await;
    let create = async || {
        let request = Request::post("/v1/namespaces")
            .header("authorization", format!("Bearer {}", api.tenant.api_key))
            .header("content-type", "application/json")
            .header("idempotency-key", "once")
            .body(Body::from(r#"{"name":"twice"}"#));
        send(&api.router, request.unwrap()).await
    };
    let (first, second) = (create().await, create().await);
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 201), "{}", second.body);
    assert_eq!(first.body, second.body);
}

#[tokio::test]
async fn a_panic_is_an_internal_error_that_tells_nothing() {
    async fn fault() {
        panic!("secret");
    }
    let router = with_middleware(Router::new().route("/fault", get(fault)));
    let got = send(&router, Request::get("/fault").body(Body::empty()).unwrap()).await;
    assert_eq!(got.code(), "INTERNAL");
    assert!(!got.body.to_string().contains("secret"));
}

#[tokio::test]
async fn a_call_that_does_not_end_is_answered_when_its_deadline_is_over() {
    let hang = with_middleware(Router::new().route("/hang", get(std::future::pending::<()>)));
    let request = Request::get("/hang").header("holdfast-timeout-ms", "1").body(Body::empty()).unwrap();
    assert_eq!(send(&hang, request).await.code(), "DEADLINE_EXCEEDED");
}

#[tokio::test]
async fn pages_without_a_credential_are_limited_by_address() {
    let api = TestApi::start().await;
    let get = async |path: &str, address: [u8; 4]| {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 5))));
        send(&api.router, request).await
    };
    let stranger = [192, 0, 2, 1];
    let refused = loop {
        let got = get("/.well-known/jwks.json", stranger).await;
        if got.status != 200 {
            break got;
        }
    };
    assert_eq!((refused.code(), refused.header("retry-after")), ("RATE_LIMITED", "1"));
    assert_eq!((&refused.body["limit"], &refused.body["max"]), (&json!("public_pages_per_second"), &json!(100)));
    assert_eq!(get("/.well-known/jwks.json", [192, 0, 2, 2]).await.status, 200, "another address");
    assert_eq!(get("/v1/namespaces", stranger).await.status, 401, "it may try with a credential");
}
