//! API keys: what they allow, for which namespaces, until when.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use serde_json::{Value, json};

use crate::support::doors::grpc::{channel, with_key};
use crate::support::doors::rest::rfc3339;
use crate::support::doors::{Failure, instant_ns};
use crate::support::{Ask, Door, Rest, World, doors, operator, server, tenant, wait_until};

/// A key made by the caller.
async fn key(maker: &Rest, body: Value) -> Rest {
    let made = maker.json("POST /v1/api-keys", body).await.ok();
    maker.with_key(made["api_key"].as_str().unwrap())
}

/// One call for each scope, and the ones that it needs.
fn calls() -> Vec<(&'static str, Option<Value>, &'static [&'static str])> {
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
    let tenant = tenant(server()).await;
    tenant.namespace("ns").await;
    for scope in ["locks:read", "locks:write", "locks:force", "namespaces:admin", "account:admin"] {
        let rest = key(&tenant.rest, json!({"scopes": [scope]})).await;
        for (line, body, needed) in calls() {
            let answer = match body {
                Some(body) => rest.json(line, body).await,
                None => rest.call(line).await,
            };
            if needed.contains(&scope) {
                // What is not there is not found; what is refused is refused for want of a scope.
                assert!(answer.status < 300 || answer.status == 404, "{scope}: {line}: {}", answer.text);
            } else {
                let refused = answer.refused("PERMISSION_DENIED");
                assert_eq!(refused["scope"], needed.join(" "), "{scope}: {line}");
            }
        }
    }
}

#[tokio::test]
async fn scopes_hold_at_every_door() {
    let world = World::<doors::rest::Client>::open().await;
    let reader = key(&world.rest, json!({"scopes": ["locks:read"]})).await;
    let (grpc, dlocks) = (doors::grpc::Client::connect(&reader).await, doors::dlocks::Client::connect(&reader).await);
    grpc.get("l").await.unwrap().is_free();
    dlocks.get("l").await.unwrap().is_free();
    for refused in [
        grpc.acquire(Ask::write("l", "p")).await.map(drop),
        dlocks.acquire(Ask::write("l", "p")).await.map(drop),
        grpc.delete("l").await,
        dlocks.delete("l").await,
        dlocks.create_namespace("new", "").await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code, "PERMISSION_DENIED");
    }
    assert_eq!(world.held().await, [""; 0]);
}

#[tokio::test]
async fn a_key_has_the_scopes_of_its_maker_unless_told_and_never_more() {
    let tenant = tenant(server()).await;
    let made = tenant.rest.call("POST /v1/api-keys").await.ok();
    let all = json!(["locks:read", "locks:write", "locks:force", "namespaces:admin", "account:admin"]);
    assert_eq!(made["scopes"], all);
    let admin = key(&tenant.rest, json!({"scopes": ["account:admin", "locks:read"]})).await;
    let made = admin.call("POST /v1/api-keys").await.ok();
    assert_eq!(made["scopes"], json!(["locks:read", "account:admin"]));
    admin.json("POST /v1/api-keys", json!({"scopes": ["locks:write"]})).await.refused("PERMISSION_DENIED");
    for scopes in [json!([]), json!(["locks"]), json!(["LOCKS:READ"]), json!([1]), json!("locks:read")] {
        let answer = tenant.rest.json("POST /v1/api-keys", json!({"scopes": scopes})).await;
        let refused = answer.refused("INVALID_ARGUMENT");
        assert!(refused["field"].as_str().unwrap().starts_with("scopes"), "{refused}");
    }
}

#[tokio::test]
async fn a_key_for_some_namespaces_is_refused_for_others() {
    let tenant = tenant(server()).await;
    for name in ["a", "b"] {
        tenant.namespace(name).await;
    }
    let rest = key(&tenant.rest, json!({"namespaces": ["a", "gone"]})).await;
    rest.call("GET /v1/namespaces/a/locks").await.ok();
    for line in ["GET /v1/namespaces/b", "GET /v1/namespaces/b/locks", "GET /v1/namespaces/unknown/locks/l"] {
        let refused = rest.call(line).await.refused("PERMISSION_DENIED");
        assert_eq!(refused["detail"], "the API key is not for this namespace");
    }
    let body = json!({"process_id": "p", "ttl_ms": 1_000});
    rest.json("POST /v1/namespaces/b/locks/l/acquire", body).await.refused("PERMISSION_DENIED");
    rest.json("POST /v1/namespaces", json!({"name": "c"})).await.refused("PERMISSION_DENIED");
    rest.call("GET /v1/namespaces/gone").await.refused("NAMESPACE_NOT_FOUND");
    let listed = rest.call("GET /v1/namespaces").await.ok();
    assert_eq!((listed["namespaces"].as_array().unwrap().len(), &listed["namespaces"][0]["name"]), (1, &json!("a")));
    // Nobody gives more than they have.
    rest.json("POST /v1/api-keys", json!({"namespaces": ["b"]})).await.refused("PERMISSION_DENIED");
    let made = rest.call("POST /v1/api-keys").await.ok();
    assert_eq!(made["namespaces"], json!(["a", "gone"]));
}

#[tokio::test]
async fn an_expired_key_is_refused() {
    let tenant = tenant(server()).await;
    let soon_ns = instant_ns(Duration::from_millis(1_500));
    let rest = key(&tenant.rest, json!({"expires_at": rfc3339(soon_ns)})).await;
    rest.call("GET /v1/namespaces").await.ok();
    let later = rfc3339(instant_ns(Duration::from_secs(60)));
    rest.json("POST /v1/api-keys", json!({"expires_at": later})).await.refused("PERMISSION_DENIED");
    wait_until("the key is refused", async || rest.call("GET /v1/namespaces").await.status == 401).await;
    assert!(instant_ns(Duration::ZERO) >= soon_ns - 1_000_000, "not refused before its time");
    rest.call("GET /v1/namespaces").await.refused("UNAUTHENTICATED");
    for past in ["2020-01-01T00:00:00Z", "1969-01-01T00:00:00Z"] {
        tenant.rest.json("POST /v1/api-keys", json!({"expires_at": past})).await.refused_field("expires_at");
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_at_once() {
    let tenant = tenant(server()).await;
    tenant.namespace("ns").await;
    for _ in 0..5 {
        let made = tenant.rest.json("POST /v1/api-keys", json!({"description": "short-lived"})).await.ok();
        let rest = tenant.rest.with_key(made["api_key"].as_str().unwrap());
        rest.call("GET /v1/namespaces/ns").await.ok();
        let line = format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap());
        assert_eq!(tenant.rest.call(&line).await.status, 204);
        rest.call("GET /v1/namespaces/ns").await.refused("UNAUTHENTICATED");
        let grpc = doors::grpc::Client::connect(&rest).await;
        assert_eq!(grpc.get("l").await.unwrap_err().code, "UNAUTHENTICATED");
        tenant.rest.call(&line).await.refused("API_KEY_NOT_FOUND");
    }
}

#[tokio::test]
async fn a_key_may_revoke_itself() {
    let tenant = tenant(server()).await;
    let made = tenant.rest.call("POST /v1/api-keys").await.ok();
    let rest = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    assert_eq!(rest.call(&format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap())).await.status, 204);
    rest.call("GET /v1/namespaces").await.refused("UNAUTHENTICATED");
}

#[tokio::test]
async fn the_secret_of_a_key_is_shown_once() {
    let tenant = tenant(server()).await;
    let answer = tenant.rest.json("POST /v1/api-keys", json!({"description": "mine"})).await;
    assert_eq!((answer.status, answer.header("cache-control")), (201, "no-store"));
    let made = answer.ok();
    let secret = made["api_key"].as_str().unwrap().splitn(3, '_').nth(2).unwrap().to_owned();
    assert!(made["api_key"].as_str().unwrap().starts_with(&format!("hf_{}_", made["key_id"].as_str().unwrap())));
    for answer in [
        tenant.rest.call("GET /v1/api-keys").await,
        operator(server()).call(&format!("GET /v1/accounts/{}/api-keys", tenant.account)).await,
    ] {
        assert!(!answer.text.contains(&secret));
        let keys = answer.ok()["api_keys"].as_array().unwrap().clone();
        assert_eq!((keys.len(), &keys[1]["key_id"], &keys[1]["description"]), (2, &made["key_id"], &json!("mine")));
        assert_eq!((&keys[1]["namespaces"], &keys[1]["expires_at"]), (&Value::Null, &Value::Null));
    }
}

#[tokio::test]
async fn a_repeated_creation_of_a_key_answers_as_the_first_did() {
    let tenant = tenant(server()).await;
    let create =
        async || tenant.rest.send("POST /v1/api-keys", &[("idempotency-key", "once")], Default::default()).await.ok();
    let (first, second) = (create().await, create().await);
    assert_eq!(first, second);
    let headers = [("idempotency-key", "once"), ("content-type", "application/json")];
    let other = json!({"scopes": ["locks:read"]}).to_string();
    tenant.rest.send("POST /v1/api-keys", &headers, other.into()).await.refused_field("idempotency_key");
    tenant.rest.with_key(second["api_key"].as_str().unwrap()).call("GET /v1/namespaces").await.ok();
    assert_eq!(tenant.rest.call("GET /v1/api-keys").await.ok()["api_keys"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_repeated_creation_does_not_bring_a_revoked_key_back() {
    let tenant = tenant(server()).await;
    let create =
        async || tenant.rest.send("POST /v1/api-keys", &[("idempotency-key", "once")], Default::default()).await;
    let made = create().await.ok();
    tenant.rest.call(&format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap())).await.ok();
    create().await.refused("API_KEY_NOT_FOUND");
    let revoked = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    revoked.call("GET /v1/namespaces").await.refused("UNAUTHENTICATED");
}

#[tokio::test]
async fn keys_can_be_made_and_revoked_over_grpc() {
    let tenant = tenant(server()).await;
    let mut client = AccountsServiceClient::new(channel(&tenant.rest).await);
    let request = v1::CreateApiKeyRequest { scopes: vec!["locks:read".into()], ..Default::default() };
    let made = client.create_api_key(with_key(request, &tenant.rest.key)).await.unwrap().into_inner();
    assert_eq!((made.account_id.as_str(), &made.scopes), (tenant.account.as_str(), &vec!["locks:read".to_owned()]));
    let rest = tenant.rest.with_key(made.api_key.as_ref().unwrap());
    rest.call("GET /v1/namespaces").await.ok();
    let list = v1::ListApiKeysRequest { account_id: tenant.account.clone() };
    let refused = client.list_api_keys(with_key(list.clone(), &tenant.rest.key)).await.unwrap_err();
    assert_eq!(Failure::of(refused).code, "PERMISSION_DENIED", "only the operator names accounts");
    let listed = client.list_api_keys(with_key(list, &operator(server()).key)).await.unwrap().into_inner();
    assert!(listed.api_keys.len() == 2 && listed.api_keys.iter().all(|key| key.api_key.is_none()));
    let delete = v1::DeleteApiKeyRequest { account_id: String::new(), key_id: made.key_id };
    client.delete_api_key(with_key(delete, &tenant.rest.key)).await.unwrap();
    rest.call("GET /v1/namespaces").await.refused("UNAUTHENTICATED");
}
