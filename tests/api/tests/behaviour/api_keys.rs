//! API keys: what they allow, for which namespaces, until when.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use serde_json::{Value, json};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::frontends::rest::rfc3339;
use crate::support::frontends::{Failure, instant_ns};
use crate::support::{
    AcquireRequest, LockClient, RestClient, TestEnv, create_tenant, frontends, operator_client, server, wait_until,
};

/// A key made by the caller.
async fn create_key(maker: &RestClient, body: Value) -> RestClient {
    let made = maker.json("POST /v1/api-keys", body).await.ok();
    maker.with_key(made["api_key"].as_str().unwrap())
}

/// One call for each scope, and the ones that it needs.
fn calls_by_scope() -> Vec<(&'static str, Option<Value>, &'static [&'static str])> {
    const LOCK: &str = "/v1/namespaces/ns/locks/l";
    let acquire = Some(json!({"process_id": "p", "ttl_ms": 60_000}));
    let lock = |call: &str| -> &'static str { String::leak(call.replace("{}", LOCK)) };
    vec![
        (lock("POST {}/acquire"), acquire, &["locks:write"]),
        (lock("POST {}/release"), Some(json!({"process_id": "q"})), &["locks:write"]),
        (lock("GET {}"), None, &["locks:read"]),
        (lock("POST {}/check"), Some(json!({"fencing_token": 1})), &["locks:read"]),
        ("GET /v1/namespaces/ns/locks", None, &["locks:read"]),
        (lock("DELETE {}"), None, &["locks:force"]),
        ("GET /v1/namespaces", None, &["locks:read", "namespaces:admin"]),
        ("GET /v1/namespaces/ns", None, &["locks:read", "namespaces:admin"]),
        ("PATCH /v1/namespaces/ns", Some(json!({"description": "d"})), &["namespaces:admin"]),
        ("DELETE /v1/namespaces/ns?id=0000000000000001", None, &["namespaces:admin"]),
        ("GET /v1/api-keys", None, &["account:admin"]),
        ("DELETE /v1/api-keys/unknown", None, &["account:admin"]),
    ]
}

#[tokio::test]
async fn a_key_allows_what_its_scopes_say_and_nothing_else() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    for scope in ["locks:read", "locks:write", "locks:force", "namespaces:admin", "account:admin"] {
        let rest = create_key(&tenant.rest, json!({"scopes": [scope]})).await;
        for (line, body, needed) in calls_by_scope() {
            let answer = match body {
                Some(body) => rest.json(line, body).await,
                None => rest.call(line).await,
            };
            if needed.contains(&scope) {
                // What is not there is not found; what is refused is refused for want of a scope.
                assert!(answer.status < 300 || answer.status == 404, "{scope}: {line}: {}", answer.text);
            } else {
                let refused = answer.expect_error("PERMISSION_DENIED");
                assert_eq!(refused["scope"], needed.join(" "), "{scope}: {line}");
            }
        }
    }
}

#[tokio::test]
async fn scopes_hold_at_every_frontend() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    let reader = create_key(&world.rest, json!({"scopes": ["locks:read"]})).await;
    let (grpc, dlocks) =
        (frontends::grpc::Client::connect(&reader).await, frontends::dlocks::Client::connect(&reader).await);
    grpc.get("l").await.unwrap().assert_free();
    dlocks.get("l").await.unwrap().assert_free();
    for refused in [
        grpc.acquire(AcquireRequest::write("l", "p")).await.map(drop),
        dlocks.acquire(AcquireRequest::write("l", "p")).await.map(drop),
        grpc.delete("l").await,
        dlocks.delete("l").await,
        dlocks.create_namespace("new", "").await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code, "PERMISSION_DENIED");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn a_key_has_the_scopes_of_its_maker_unless_told_and_never_more() {
    let tenant = create_tenant(server()).await;
    let made = tenant.rest.call("POST /v1/api-keys").await.ok();
    let all = json!(["locks:read", "locks:write", "locks:force", "namespaces:admin", "account:admin"]);
    assert_eq!(made["scopes"], all);
    let admin = create_key(&tenant.rest, json!({"scopes": ["account:admin", "locks:read"]})).await;
    let made = admin.call("POST /v1/api-keys").await.ok();
    assert_eq!(made["scopes"], json!(["locks:read", "account:admin"]));
    admin.json("POST /v1/api-keys", json!({"scopes": ["locks:write"]})).await.expect_error("PERMISSION_DENIED");
    for scopes in [json!([]), json!(["locks"]), json!(["LOCKS:READ"]), json!([1]), json!("locks:read")] {
        let answer = tenant.rest.json("POST /v1/api-keys", json!({"scopes": scopes})).await;
        let refused = answer.expect_error("INVALID_ARGUMENT");
        assert!(refused["field"].as_str().unwrap().starts_with("scopes"), "{refused}");
    }
}

#[tokio::test]
async fn a_key_for_some_namespaces_is_refused_for_others() {
    let tenant = create_tenant(server()).await;
    for name in ["a", "b"] {
        tenant.create_namespace(name).await;
    }
    let rest = create_key(&tenant.rest, json!({"namespaces": ["a", "gone"]})).await;
    rest.call("GET /v1/namespaces/a/locks").await.ok();
    for line in ["GET /v1/namespaces/b", "GET /v1/namespaces/b/locks", "GET /v1/namespaces/unknown/locks/l"] {
        let refused = rest.call(line).await.expect_error("PERMISSION_DENIED");
        assert_eq!(refused["detail"], "the API key is not for this namespace");
    }
    let body = json!({"process_id": "p", "ttl_ms": 1_000});
    rest.json("POST /v1/namespaces/b/locks/l/acquire", body).await.expect_error("PERMISSION_DENIED");
    rest.json("POST /v1/namespaces", json!({"name": "c"})).await.expect_error("PERMISSION_DENIED");
    rest.call("GET /v1/namespaces/gone").await.expect_error("NAMESPACE_NOT_FOUND");
    let listed = rest.call("GET /v1/namespaces").await.ok();
    assert_eq!((listed["namespaces"].as_array().unwrap().len(), &listed["namespaces"][0]["name"]), (1, &json!("a")));
    // No key can grant more than its creator has.
    rest.json("POST /v1/api-keys", json!({"namespaces": ["b"]})).await.expect_error("PERMISSION_DENIED");
    let made = rest.call("POST /v1/api-keys").await.ok();
    assert_eq!(made["namespaces"], json!(["a", "gone"]));
}

#[tokio::test]
async fn an_expired_key_is_refused() {
    let tenant = create_tenant(server()).await;
    // Later than the calls before it are answered, also while a disk stalls.
    let soon_ns = instant_ns(Duration::from_secs(6));
    let rest = create_key(&tenant.rest, json!({"expires_at": rfc3339(soon_ns)})).await;
    rest.call("GET /v1/namespaces").await.ok();
    let later = rfc3339(instant_ns(Duration::from_secs(60)));
    rest.json("POST /v1/api-keys", json!({"expires_at": later})).await.expect_error("PERMISSION_DENIED");
    wait_until("the key is refused", async || rest.call("GET /v1/namespaces").await.status == 401).await;
    assert!(instant_ns(Duration::ZERO) >= soon_ns - 1_000_000, "not refused before its time");
    rest.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
    for past in ["2020-01-01T00:00:00Z", "1969-01-01T00:00:00Z"] {
        tenant.rest.json("POST /v1/api-keys", json!({"expires_at": past})).await.expect_field_error("expires_at");
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    for _ in 0..5 {
        let made = tenant.rest.json("POST /v1/api-keys", json!({"description": "short-lived"})).await.ok();
        let rest = tenant.rest.with_key(made["api_key"].as_str().unwrap());
        rest.call("GET /v1/namespaces/ns").await.ok();
        let line = format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap());
        assert_eq!(tenant.rest.call(&line).await.status, 204);
        rest.call("GET /v1/namespaces/ns").await.expect_error("UNAUTHENTICATED");
        let grpc = frontends::grpc::Client::connect(&rest).await;
        assert_eq!(grpc.get("l").await.unwrap_err().code, "UNAUTHENTICATED");
        tenant.rest.call(&line).await.expect_error("API_KEY_NOT_FOUND");
    }
}

#[tokio::test]
async fn a_key_may_revoke_itself() {
    let tenant = create_tenant(server()).await;
    let made = tenant.rest.call("POST /v1/api-keys").await.ok();
    let rest = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    assert_eq!(rest.call(&format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap())).await.status, 204);
    rest.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
}

#[tokio::test]
async fn the_secret_of_a_key_is_shown_once() {
    let tenant = create_tenant(server()).await;
    let answer = tenant.rest.json("POST /v1/api-keys", json!({"description": "mine"})).await;
    assert_eq!((answer.status, answer.header("cache-control")), (201, "no-store"));
    let made = answer.ok();
    let secret = made["api_key"].as_str().unwrap().splitn(3, '_').nth(2).unwrap().to_owned();
    assert!(made["api_key"].as_str().unwrap().starts_with(&format!("hf_{}_", made["key_id"].as_str().unwrap())));
    for answer in [
        tenant.rest.call("GET /v1/api-keys").await,
        operator_client(server()).call(&format!("GET /v1/accounts/{}/api-keys", tenant.account)).await,
    ] {
        assert!(!answer.text.contains(&secret));
        let keys = answer.ok()["api_keys"].as_array().unwrap().clone();
        assert_eq!((keys.len(), &keys[1]["key_id"], &keys[1]["description"]), (2, &made["key_id"], &json!("mine")));
        assert_eq!((&keys[1]["namespaces"], &keys[1]["expires_at"]), (&Value::Null, &Value::Null));
    }
}

#[tokio::test]
async fn a_repeated_creation_of_a_key_answers_as_the_first_did() {
    let tenant = create_tenant(server()).await;
    let create =
        async || tenant.rest.send("POST /v1/api-keys", &[("idempotency-key", "once")], Default::default()).await.ok();
    let (first, second) = (create().await, create().await);
    assert_eq!(first, second);
    let headers = [("idempotency-key", "once"), ("content-type", "application/json")];
    let other = json!({"scopes": ["locks:read"]}).to_string();
    tenant.rest.send("POST /v1/api-keys", &headers, other.into()).await.expect_field_error("idempotency_key");
    tenant.rest.with_key(second["api_key"].as_str().unwrap()).call("GET /v1/namespaces").await.ok();
    assert_eq!(tenant.rest.call("GET /v1/api-keys").await.ok()["api_keys"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_repeated_creation_does_not_bring_a_revoked_key_back() {
    let tenant = create_tenant(server()).await;
    let create =
        async || tenant.rest.send("POST /v1/api-keys", &[("idempotency-key", "once")], Default::default()).await;
    let made = create().await.ok();
    tenant.rest.call(&format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap())).await.ok();
    create().await.expect_error("API_KEY_NOT_FOUND");
    let revoked = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    revoked.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
}

#[tokio::test]
async fn keys_can_be_made_and_revoked_over_grpc() {
    let tenant = create_tenant(server()).await;
    let mut client = AccountsServiceClient::new(channel(&tenant.rest).await);
    let request = v1::CreateApiKeyRequest { scopes: vec!["locks:read".into()], ..Default::default() };
    let made = client.create_api_key(with_key(request, &tenant.rest.key)).await.unwrap().into_inner();
    assert_eq!((made.account_id.as_str(), &made.scopes), (tenant.account.as_str(), &vec!["locks:read".to_owned()]));
    let rest = tenant.rest.with_key(made.api_key.as_ref().unwrap());
    rest.call("GET /v1/namespaces").await.ok();
    let list = v1::ListApiKeysRequest { account_id: tenant.account.clone() };
    let refused = client.list_api_keys(with_key(list.clone(), &tenant.rest.key)).await.unwrap_err();
    assert_eq!(Failure::from_status(refused).code, "PERMISSION_DENIED", "only the operator names accounts");
    let listed = client.list_api_keys(with_key(list, &operator_client(server()).key)).await.unwrap().into_inner();
    assert!(listed.api_keys.len() == 2 && listed.api_keys.iter().all(|key| key.api_key.is_none()));
    let delete = v1::DeleteApiKeyRequest { account_id: String::new(), key_id: made.key_id };
    client.delete_api_key(with_key(delete, &tenant.rest.key)).await.unwrap();
    rest.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
}

#[tokio::test]
async fn an_account_changes_its_keys_only_so_often() {
    let tenant = create_tenant(server()).await;
    tenant.update(server(), json!({"limits": {"max_key_changes": 3}})).await;
    for _ in 0..3 {
        tenant.rest.json("POST /v1/api-keys", json!({})).await.ok();
    }
    let refused = tenant.rest.json("POST /v1/api-keys", json!({})).await;
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 10);
    let refused = refused.expect_error("RATE_LIMITED");
    assert_eq!(refused["limit"], "max_key_changes");
    assert_eq!(refused["max"], 3);
    tenant.rest.call("GET /v1/api-keys").await.ok();
}
