//! Tokens got for a key: what they allow, how they are verified, and what ends them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_proto::v1;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use holdfast_testkit::{Metrics, Standalone, scratch, wait_before_retry};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde_json::{Value, json};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::frontends::{self, LockClient};
use crate::support::{RestClient, SessionSocket, create_tenant, operator_client, server, wait_until};
use holdfast_testkit::EventStream;
use holdfast_testkit::Response;

/// A caller with a token that is got for the caller's key, once the rate of tokens allows it.
async fn with_token(rest: &RestClient, body: Value) -> RestClient {
    loop {
        let made = rest.json("POST /v1/tokens", body.clone()).await;
        if made.status != 429 {
            return rest.with_key(made.ok()["token"].as_str().unwrap());
        }
        wait_before_retry().await;
    }
}

async fn public_keys(rest: &RestClient) -> Vec<Value> {
    let answer = rest.with_key("").call("GET /.well-known/jwks.json").await;
    assert_eq!(answer.header("cache-control"), "public, max-age=300");
    answer.ok()["keys"].as_array().unwrap().clone()
}

fn jwt_part(token: &str, at: usize) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(at).unwrap()).unwrap()).unwrap()
}

fn base64url(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

#[tokio::test]
async fn a_token_opens_every_frontend_that_its_key_opens() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let rest = with_token(&tenant.rest, json!({})).await;
    let body = json!({"process_id": "p", "ttl_ms": 60_000});
    assert_eq!(rest.json("POST /v1/namespaces/ns/locks/l/acquire", body).await.ok()["success"], true);
    let grpc = frontends::grpc::Client::connect(&rest).await;
    grpc.get("l").await.unwrap();
    let dlocks = frontends::dlocks::Client::connect(&rest).await;
    dlocks.get("l").await.unwrap();
    for mut socket in [SessionSocket::connect(&rest).await, SessionSocket::connect_as_browser(&rest).await] {
        socket.open_session(10_000).await;
        socket.send(json!({"type": "close"})).await;
    }
    let mut events = EventStream::open(&rest, "ns", "?from_revision=1", None).await.unwrap();
    assert_eq!(events.next().await.kind, "ACQUIRED");
}

#[tokio::test]
async fn a_token_can_be_got_over_grpc() {
    let tenant = create_tenant(server()).await;
    let mut client = AccountsServiceClient::new(channel(&tenant.rest).await);
    let request =
        v1::CreateTokenRequest { scopes: vec!["locks:read".into()], ttl_ms: Some(60_000), ..Default::default() };
    let made = client.create_token(with_key(request, &tenant.rest.key)).await.unwrap().into_inner();
    let rest = tenant.rest.with_key(&made.token);
    rest.call("GET /v1/namespaces").await.ok();
    rest.json("POST /v1/namespaces", json!({"name": "n"})).await.expect_error("PERMISSION_DENIED");
    let claims = jwt_part(&made.token, 1);
    assert_eq!(claims["exp"].as_i64().unwrap(), made.expires_at.unwrap().seconds);
}

#[tokio::test]
async fn a_token_allows_no_more_than_its_key_and_less_when_told() {
    let tenant = create_tenant(server()).await;
    for name in ["a", "b"] {
        tenant.create_namespace(name).await;
    }
    let made = tenant.rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read", "locks:write"]})).await.ok();
    let key = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    let reader = with_token(&key, json!({"scopes": ["locks:read"], "namespaces": ["a"]})).await;
    reader.call("GET /v1/namespaces/a/locks/l").await.ok();
    reader.call("GET /v1/namespaces/b/locks/l").await.expect_error("PERMISSION_DENIED");
    let body = json!({"process_id": "p", "ttl_ms": 60_000});
    reader.json("POST /v1/namespaces/a/locks/l/acquire", body).await.expect_error("PERMISSION_DENIED");
    for body in [json!({"scopes": ["locks:force"]}), json!({"scopes": ["locks:read", "account:admin"]})] {
        key.json("POST /v1/tokens", body).await.expect_error("PERMISSION_DENIED");
    }
    let made = tenant.rest.json("POST /v1/api-keys", json!({"namespaces": ["a"]})).await.ok();
    let of_a = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    of_a.json("POST /v1/tokens", json!({"namespaces": ["a", "b"]})).await.expect_error("PERMISSION_DENIED");
    with_token(&of_a, json!({})).await.call("GET /v1/namespaces/b").await.expect_error("PERMISSION_DENIED");
    // Neither a token nor the operator gets one.
    reader.call("POST /v1/tokens").await.expect_error("PERMISSION_DENIED");
    operator_client(server()).call("POST /v1/tokens").await.expect_error("PERMISSION_DENIED");
}

#[tokio::test]
async fn what_is_wrong_with_the_wish_for_a_token_is_named() {
    let rest = create_tenant(server()).await.rest;
    for ttl_ms in [0, 999, 3_600_001, u64::MAX] {
        rest.json("POST /v1/tokens", json!({"ttl_ms": ttl_ms})).await.expect_field_error("ttl_ms");
    }
    rest.json("POST /v1/tokens", json!({"scopes": []})).await.expect_field_error("scopes");
    rest.json("POST /v1/tokens", json!({"scopes": ["locks:all"]})).await.expect_field_error("scopes");
    rest.json("POST /v1/tokens", json!({"namespaces": []})).await.expect_field_error("namespaces");
    rest.json("POST /v1/tokens", json!({"ttl": 1})).await.expect_field_error("ttl");
    let long: Vec<String> = (0..100).map(|number| format!("{number:0>128}")).collect();
    rest.json("POST /v1/tokens", json!({"namespaces": long})).await.expect_field_error("namespaces");
}

#[tokio::test]
async fn a_token_ends_by_itself() {
    let rest = create_tenant(server()).await.rest;
    let made = rest.json("POST /v1/tokens", json!({"ttl_ms": 5_000})).await.ok();
    let short = rest.with_key(made["token"].as_str().unwrap());
    short.call("GET /v1/namespaces").await.ok();
    wait_until("the token has ended", async || short.call("GET /v1/namespaces").await.status == 401).await;
}

#[tokio::test]
async fn a_token_ends_with_its_key_and_with_its_account() {
    let tenant = create_tenant(server()).await;
    let made = tenant.rest.call("POST /v1/api-keys").await.ok();
    let key = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    let of_key = with_token(&key, json!({})).await;
    let other = with_token(&tenant.rest, json!({})).await;
    of_key.call("GET /v1/namespaces").await.ok();
    tenant.rest.call(&format!("DELETE /v1/api-keys/{}", made["key_id"].as_str().unwrap())).await.ok();
    of_key.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
    other.call("GET /v1/namespaces").await.ok();
    tenant.update(server(), json!({"status": "SUSPENDED"})).await;
    other.call("GET /v1/namespaces").await.expect_error("PERMISSION_DENIED");
    tenant.update(server(), json!({"status": "ACTIVE"})).await;
    other.call("GET /v1/namespaces").await.ok();
    operator_client(server()).call(&format!("DELETE /v1/accounts/{}", tenant.account)).await.ok();
    other.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
}

#[tokio::test]
async fn anybody_can_verify_a_token_with_the_public_keys() {
    let tenant = create_tenant(server()).await;
    let rest = with_token(&tenant.rest, json!({"scopes": ["locks:read"], "ttl_ms": 60_000})).await;
    let header = jsonwebtoken::decode_header(&rest.key).unwrap();
    assert_eq!((header.alg, header.typ.as_deref()), (Algorithm::EdDSA, Some("at+jwt")));
    let keys = public_keys(&tenant.rest).await;
    assert_eq!(keys.len(), 3);
    let key = keys.iter().find(|key| key["kid"].as_str() == header.kid.as_deref()).unwrap();
    let key: jsonwebtoken::jwk::Jwk = serde_json::from_value(key.clone()).unwrap();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.validate_aud = false;
    let read = jsonwebtoken::decode::<Value>(&rest.key, &DecodingKey::from_jwk(&key).unwrap(), &validation).unwrap();
    assert_eq!(read.claims["sub"], tenant.account);
    assert_eq!(read.claims["scope"], "locks:read");
}

/// Refuses it as whatever else is no credential, without a word about why.
fn assert_unauthenticated(answer: Response) {
    let refused = answer.expect_error("UNAUTHENTICATED");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.starts_with("the token is malformed, expired or revoked") || detail.contains("neither an API key"));
}

#[tokio::test]
async fn forged_changed_and_cut_tokens_are_refused_at_every_frontend() {
    let victim = create_tenant(server()).await;
    let rest = with_token(&victim.rest, json!({})).await;
    let mine = with_token(&create_tenant(server()).await.rest, json!({})).await;
    let good = rest.key.clone();
    let (head, claims) = (jwt_part(&good, 0), jwt_part(&good, 1));
    let [head_text, claims_text, signature] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let with_head = |field: &str, value: Value| {
        let mut changed = head.clone();
        changed[field] = value;
        changed
    };
    let none = base64url(&with_head("alg", json!("none")));
    let mut other_account = jwt_part(&mine.key, 1);
    other_account["sub"] = claims["sub"].clone();
    let public = public_keys(&rest).await[1]["x"].as_str().unwrap().to_owned();
    let hs256 = |secret: &[u8]| {
        let mut header = Header::new(Algorithm::HS256);
        header.typ = Some("at+jwt".to_owned());
        header.kid = head["kid"].as_str().map(str::to_owned);
        jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(secret)).unwrap()
    };
    let forged = [
        format!("{none}.{claims_text}."),
        format!("{none}.{claims_text}.{signature}"),
        format!("{head_text}.{claims_text}."),
        format!("{head_text}..{signature}"),
        format!("{}.{claims_text}.{signature}", base64url(&with_head("alg", json!("HS256")))),
        format!("{}.{claims_text}.{signature}", base64url(&with_head("alg", json!("NONE")))),
        format!("{}.{claims_text}.{signature}", base64url(&with_head("kid", json!("0000000000000000")))),
        hs256(public.as_bytes()),
        hs256(&URL_SAFE_NO_PAD.decode(&public).unwrap()),
        format!("{head_text}.{}.{signature}", base64url(&other_account)),
        format!("{head_text}.{claims_text}.{}", mine.key.split('.').nth(2).unwrap()),
        good[..good.len() - 1].to_owned(),
        good[..good.len() / 2].to_owned(),
        format!("{good}{}", "A".repeat(20_000)),
        "..".to_owned(),
    ];
    for text in &forged {
        let forger = rest.with_key(text);
        assert_unauthenticated(forger.call("GET /v1/namespaces").await);
        assert!(EventStream::open(&forger, "ns", "", None).await.is_err());
        let grpc = frontends::grpc::Client::connect(&forger).await;
        assert_eq!(grpc.get("l").await.unwrap_err().code, "UNAUTHENTICATED", "{text}");
    }
    rest.call("GET /v1/namespaces").await.ok();
}

#[tokio::test]
async fn tokens_of_before_a_rotation_are_good_as_long_as_their_key_is_public() {
    let rotating = Standalone::start(&scratch(), &["--signing-key-seconds", "5"]);
    let rest = RestClient::new(rotating.address(), &rotating.secret("demo.key"));
    let names = async || public_keys(&rest).await.into_iter().map(|key| key["kid"].clone()).collect::<Vec<_>>();
    // No rotation falls between the look at the keys and the token, or the next key would not be among them.
    let (before, early) = loop {
        let before = names().await;
        let made = rest.json("POST /v1/tokens", json!({"ttl_ms": 3_600_000})).await.ok();
        if names().await == before {
            break (before, rest.with_key(made["token"].as_str().unwrap()));
        }
    };
    early.call("GET /v1/namespaces").await.ok();
    let first = jwt_part(&early.key, 0)["kid"].clone();
    let signer = async || jwt_part(&with_token(&rest, json!({})).await.key, 0)["kid"].clone();
    wait_until("another key signs", async || signer().await != first).await;
    assert!(before.contains(&signer().await), "the next key was public before it was used");
    wait_until("it has ended", async || early.call("GET /v1/namespaces").await.status == 401).await;
    wait_until("its key is gone", async || !names().await.contains(&first)).await;
    assert_unauthenticated(early.call("GET /v1/namespaces").await);

    // Another generation of keys ends all tokens at once.
    let data_dir = scratch();
    let started = Standalone::start(&data_dir, &[]);
    let rest = RestClient::new(started.address(), &started.secret("demo.key"));
    let before = with_token(&rest, json!({})).await;
    before.call("GET /v1/namespaces").await.ok();
    drop(started);
    let again = Standalone::start(&data_dir, &[]);
    RestClient::new(again.address(), &before.key).call("GET /v1/namespaces").await.ok();
    drop(again);
    let changed = Standalone::start(&data_dir, &["--signing-key-generation", "1"]);
    assert_unauthenticated(RestClient::new(changed.address(), &before.key).call("GET /v1/namespaces").await);
    with_token(&RestClient::new(changed.address(), &rest.key), json!({})).await.call("GET /v1/namespaces").await.ok();
}

#[tokio::test]
async fn a_key_shows_when_it_or_its_token_was_last_used() {
    let tenant = create_tenant(server()).await;
    let made = tenant.rest.call("POST /v1/api-keys").await.ok();
    assert_eq!(made["last_used_at"], Value::Null);
    let key = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    let shown = async || {
        let keys = tenant.rest.call("GET /v1/api-keys").await.ok();
        let keys = keys["api_keys"].as_array().unwrap().clone();
        keys.into_iter().find(|shown| shown["key_id"] == made["key_id"]).unwrap()["last_used_at"].clone()
    };
    assert_eq!(shown().await, Value::Null);
    key.call("GET /v1/namespaces").await.ok();
    wait_until("the use is noted", async || shown().await.is_string()).await;
    assert!(shown().await.as_str() >= made["created_at"].as_str());
}

#[tokio::test]
async fn an_address_with_many_refused_tokens_waits_and_callers_that_were_checked_before_go_on() {
    let strict = Standalone::start(&scratch(), &["--refused-credentials-per-second", "1"]);
    let rest = RestClient::new(strict.address(), &strict.secret("demo.key"));
    let by_token = with_token(&rest, json!({})).await;
    by_token.call("GET /v1/namespaces").await.ok();
    // A change that the gateway learns of meanwhile has it look the key up again.
    let look_ups = async || {
        let metrics = Metrics::read(strict.address()).await.unwrap();
        let count = |outcome: &str| -> f64 {
            let all = metrics.named("holdfast_directory_cache_lookups_total");
            all.filter(|sample| sample.labels["outcome"] == outcome).map(|sample| sample.value).sum()
        };
        (count("hit"), count("miss"))
    };
    wait_until("the key is in memory", async || {
        let (hits, misses) = look_ups().await;
        rest.call("GET /v1/namespaces").await.ok();
        let (hits_after, misses_after) = look_ups().await;
        hits_after > hits && misses_after == misses
    })
    .await;
    let forger = RestClient::new(rest.address, "e30.e30.c2ln");
    let mut limited = None;
    for _ in 0..50 {
        let answer = forger.call("GET /v1/namespaces").await;
        if answer.status == 429 {
            limited = Some(answer);
            break;
        }
        assert_unauthenticated(answer);
    }
    let limited = limited.expect("fifty are too many for one a second");
    assert_eq!((limited.header("retry-after"), limited.header("connection")), ("1", "close"));
    assert_eq!(limited.expect_error("RATE_LIMITED")["limit"], "refused_credentials_per_second");
    rest.call("GET /v1/namespaces").await.ok();
    by_token.call("GET /v1/namespaces").await.ok();
}
