//! Signed grants: what a resource server learns from them without a call.

use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Value, json};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, create_tenant, server};

/// A resource server: it read the public keys once, and has no connection to the service.
struct ResourceServer {
    keys: JwkSet,
    account: String,
}

impl ResourceServer {
    async fn new(rest: &RestClient, account: &str) -> Self {
        let keys = rest.with_key("").call("GET /.well-known/jwks.json").await.ok();
        Self { keys: serde_json::from_value(keys).unwrap(), account: account.to_owned() }
    }

    fn verify(&self, grant: &str) -> Option<Value> {
        let header = jsonwebtoken::decode_header(grant).ok()?;
        if header.typ.as_deref() != Some("holdfast-grant+jwt") {
            return None;
        }
        let key = DecodingKey::from_jwk(self.keys.find(header.kid.as_deref()?)?).ok()?;
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.leeway = 0;
        validation.validate_aud = false;
        validation.set_issuer(&["holdfast"]);
        let claims = jsonwebtoken::decode::<Value>(grant, &key, &validation).ok()?.claims;
        (claims["sub"] == self.account).then_some(claims)
    }
}

/// The middle of a JWT.
fn encoded_claims(jwt: &str) -> &str {
    jwt.split('.').nth(1).unwrap()
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test]
async fn a_signed_grant_shows_what_is_held_until_it_ends() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let resource = ResourceServer::new(&tenant.rest, &tenant.account).await;
    let line = "POST /v1/namespaces/ns/locks/a%2Fb/acquire";
    let unasked = tenant.rest.json(line, json!({"process_id": "p", "ttl_ms": 60_000})).await.ok();
    assert!(unasked.get("signed_grant").is_none());
    let before = now_secs();
    let body = json!({"process_id": "p", "ttl_ms": 60_000, "signed": true});
    let granted = tenant.rest.json(line, body).await.ok();
    let claims = resource.verify(granted["signed_grant"].as_str().unwrap()).unwrap();
    let exp = claims["exp"].as_u64().unwrap();
    assert!((before + 59..=now_secs() + 60).contains(&exp), "{claims}");
    for (claim, expected) in [
        ("namespace", json!("ns")),
        ("path", json!(["a/b"])),
        ("mode", json!("WRITE")),
        ("process_id", json!("p")),
        ("fencing_token", granted["fencing_token"].clone()),
    ] {
        assert_eq!(claims[claim], expected, "{claims}");
    }
    assert!(claims.get("session_id").is_none() && claims.get("holder").is_none());
    // It is no credential.
    let grant = granted["signed_grant"].as_str().unwrap();
    tenant.rest.with_key(grant).call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
    // Neither is a credential a grant, nor a grant one of another tenant or with other words.
    let token = tenant.rest.call("POST /v1/tokens").await.ok();
    assert_eq!(resource.verify(token["token"].as_str().unwrap()), None);
    let other = ResourceServer { account: "0000000000000001".to_owned(), keys: resource.keys.clone() };
    assert_eq!(other.verify(grant), None);
    let parts: Vec<&str> = grant.split('.').collect();
    let other_claims = encoded_claims(token["token"].as_str().unwrap());
    assert_eq!(resource.verify(&format!("{}.{other_claims}.{}", parts[0], parts[2])), None);
}

#[tokio::test]
async fn who_is_refused_gets_no_grant_and_extending_gets_a_later_one() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let resource = ResourceServer::new(&tenant.rest, &tenant.account).await;
    let acquire = async |body: Value| tenant.rest.json("POST /v1/namespaces/ns/locks/l/acquire", body).await.ok();
    let first = acquire(json!({"process_id": "p", "ttl_ms": 30_000, "signed": true})).await;
    let refused = acquire(json!({"process_id": "q", "ttl_ms": 30_000, "signed": true})).await;
    assert!(refused["success"] == false && refused.get("signed_grant").is_none());
    let token = first["fencing_token"].clone();
    let longer = json!({"process_id": "p", "ttl_ms": 60_000, "fencing_token": token, "signed": true});
    let extended = acquire(longer).await;
    let claims = |answer: &Value| resource.verify(answer["signed_grant"].as_str().unwrap()).unwrap();
    assert_eq!(claims(&extended)["fencing_token"], token);
    assert!(claims(&extended)["exp"].as_u64() > claims(&first)["exp"].as_u64());
}

#[tokio::test]
async fn a_set_has_a_grant_for_each_lock_and_a_session_is_named() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let resource = ResourceServer::new(&tenant.rest, &tenant.account).await;
    let session = tenant.rest.json("POST /v1/namespaces/ns/sessions", json!({"process_id": "p", "ttl_ms": 30_000}));
    let session_id = session.await.ok()["session_id"].clone();
    let body = json!({"session_id": session_id, "holder": "h", "signed": true,
        "resources": [{"path": ["b"]}, {"path": ["a", "c"], "mode": "READ"}]});
    let granted = tenant.rest.json("POST /v1/namespaces/ns/lock-sets/acquire", body).await.ok();
    let grants = granted["signed_grants"].as_array().unwrap();
    let claims: Vec<Value> = grants.iter().map(|grant| resource.verify(grant.as_str().unwrap()).unwrap()).collect();
    let shown: Vec<_> = claims.iter().map(|claims| (claims["path"].clone(), claims["mode"].clone())).collect();
    assert_eq!(shown, [(json!(["a", "c"]), json!("READ")), (json!(["b"]), json!("WRITE"))]);
    for claims in &claims {
        assert_eq!((&claims["session_id"], &claims["holder"]), (&session_id, &json!("h")));
        assert_eq!(claims["fencing_token"], granted["fencing_token"]);
        assert!(claims["exp"].as_u64().unwrap() <= now_secs() + 60);
    }
}

#[tokio::test]
async fn a_reader_in_a_crowd_gets_its_own_grant() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let resource = ResourceServer::new(&tenant.rest, &tenant.account).await;
    let mut client = LocksServiceClient::new(channel(&tenant.rest).await);
    for reader in 0..20 {
        let request = v1::AcquireLockRequest {
            namespace: "ns".into(),
            name: Some("l".into()),
            process_id: Some(format!("p{reader}")),
            mode: v1::Mode::Read.into(),
            ttl_ms: Some(60_000),
            signed: true,
            ..Default::default()
        };
        let granted = client.acquire_lock(with_key(request, &tenant.rest.key)).await.unwrap().into_inner();
        let claims = resource.verify(&granted.signed_grant.unwrap()).unwrap();
        assert_eq!(claims["process_id"], format!("p{reader}"));
        assert_eq!(claims["fencing_token"].as_u64(), granted.fencing_token);
    }
}
