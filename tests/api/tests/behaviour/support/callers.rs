//! Every kind of caller that a call may come from.

use std::time::Duration;

use holdfast_testkit::Standalone;
use serde_json::{Value, json};

use super::frontends::instant_ns;
use super::frontends::rest::rfc3339;
use super::{RestClient, create_tenant, operator_client, wait_until};

/// Every scope.
pub(crate) const SCOPES: [&str; 5] = ["locks:read", "locks:write", "locks:force", "namespaces:admin", "account:admin"];

/// What a caller is, as far as it matters for what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerKind {
    /// Brings something that is no good: nothing, nonsense, or what ended.
    Unauthenticated,
    /// The operator.
    Operator,
    /// A key or token of the account with this scope and no other.
    Scoped(&'static str),
    /// A key or token of the account with every scope, for another namespace than the one that is called.
    OtherNamespace,
    /// A key or token of a suspended account.
    Suspended,
    /// A key of another account, with every scope.
    OtherTenant,
}

/// A caller.
#[derive(Clone, Debug)]
pub(crate) struct TestCaller {
    /// For messages.
    pub(crate) name: String,
    pub(crate) kind: CallerKind,
    pub(crate) rest: RestClient,
}

/// Callers of every kind. The account that is called has a namespace `ns`.
pub(crate) async fn callers(server: &Standalone) -> Vec<TestCaller> {
    let owner = create_tenant(server).await;
    owner.create_namespace("ns").await;
    let mut found = unauthenticated_callers(server, &owner.rest).await;
    let mut add = |name: &str, kind, rest| found.push(TestCaller { name: name.to_owned(), kind, rest });
    add("the operator", CallerKind::Operator, operator_client(server));
    for scope in SCOPES {
        let key = create_key(&owner.rest, json!({"scopes": [scope]})).await.0;
        let token = create_token(&owner.rest, json!({"scopes": [scope]})).await;
        add(&format!("a key for {scope}"), CallerKind::Scoped(scope), key);
        add(&format!("a token for {scope}"), CallerKind::Scoped(scope), token);
    }
    let elsewhere = json!({"namespaces": ["elsewhere"]});
    add("a key for another namespace", CallerKind::OtherNamespace, create_key(&owner.rest, elsewhere.clone()).await.0);
    add("a token for another namespace", CallerKind::OtherNamespace, create_token(&owner.rest, elsewhere).await);
    let suspended = create_tenant(server).await;
    suspended.create_namespace("ns").await;
    add("a suspended account's token", CallerKind::Suspended, create_token(&suspended.rest, json!({})).await);
    suspended.update(server, json!({"status": "SUSPENDED"})).await;
    add("a suspended account's key", CallerKind::Suspended, suspended.rest);
    add("another account's key", CallerKind::OtherTenant, create_tenant(server).await.rest);
    found
}

async fn unauthenticated_callers(server: &Standalone, owner: &RestClient) -> Vec<TestCaller> {
    let (revoked, revoked_id) = create_key(owner, json!({})).await;
    let of_revoked = create_token(&revoked, json!({})).await;
    owner.call(&format!("DELETE /v1/api-keys/{revoked_id}")).await.ok();
    // Later than the key is made, also while a disk stalls.
    let soon = rfc3339(instant_ns(Duration::from_secs(4)));
    let (expired, _) = create_key(owner, json!({"expires_at": soon})).await;
    let short = create_token(owner, json!({"ttl_ms": 1_000})).await;
    let good = create_token(owner, json!({})).await;
    let other = create_token(&create_tenant(server).await.rest, json!({})).await;
    let gone = create_tenant(server).await;
    operator_client(server).call(&format!("DELETE /v1/accounts/{}", gone.account)).await.ok();
    for ends in [&expired, &short] {
        wait_until("it has ended", async || ends.call("GET /v1/namespaces").await.status == 401).await;
    }
    let key = &owner.key;
    let (unsigned, signature) = good.key.rsplit_once('.').unwrap();
    let texts = [
        ("nobody", String::new()),
        ("nonsense", "nonsense".to_owned()),
        ("a cut key", key[..key.len() - 30].to_owned()),
        ("a key with another secret", format!("{}{}", &key[..key.len() - 8], "AAAAAAAA")),
        ("an unknown key", format!("hf_aaaaaaaaaaaaaaaa_{}", &key[key.len() - 43..])),
        ("a long key", format!("{key}{}", "a".repeat(10_000))),
        ("a revoked key", revoked.key),
        ("an expired key", expired.key),
        ("a deleted account's key", gone.rest.key),
        ("a revoked key's token", of_revoked.key),
        ("an expired token", short.key),
        ("a cut token", good.key[..good.key.len() - 10].to_owned()),
        ("a token without signature", format!("{unsigned}.")),
        ("a token with another's signature", format!("{unsigned}.{}", other.key.rsplit('.').next().unwrap())),
        ("another's token with this signature", format!("{}.{signature}", other.key.rsplit_once('.').unwrap().0)),
        ("another operator", format!("hfop_{}", "A".repeat(43))),
    ];
    let stranger = |(name, key): (&str, String)| TestCaller {
        name: name.to_owned(),
        kind: CallerKind::Unauthenticated,
        rest: owner.with_key(&key),
    };
    texts.into_iter().map(stranger).collect()
}

/// A key made by the caller, and its id.
async fn create_key(maker: &RestClient, body: Value) -> (RestClient, String) {
    let made = maker.json("POST /v1/api-keys", body).await.ok();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (maker.with_key(&text("api_key")), text("key_id"))
}

/// A token for the caller's key.
async fn create_token(of: &RestClient, body: Value) -> RestClient {
    let made = of.json("POST /v1/tokens", body).await.ok();
    of.with_key(made["token"].as_str().unwrap())
}
