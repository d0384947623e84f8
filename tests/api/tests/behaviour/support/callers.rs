//! Every kind of caller that a call may come from.

use std::time::Duration;

use holdfast_api_tests::Standalone;
use serde_json::{Value, json};

use super::doors::instant_ns;
use super::doors::rest::rfc3339;
use super::{Rest, operator, tenant, wait_until};

/// Every scope.
pub(crate) const SCOPES: [&str; 5] = ["locks:read", "locks:write", "locks:force", "namespaces:admin", "account:admin"];

/// What a caller is, as far as it matters for what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Brings something that is no good: nothing, nonsense, or what ended.
    Stranger,
    /// The operator.
    Operator,
    /// A key or token of the account with this scope and no other.
    Scoped(&'static str),
    /// A key or token of the account with every scope, for another namespace than the one that is called.
    Elsewhere,
    /// A key or token of a suspended account.
    Suspended,
    /// A key of another account, with every scope.
    OtherTenant,
}

/// A caller.
#[derive(Clone, Debug)]
pub(crate) struct KnownCaller {
    /// For messages.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) rest: Rest,
}

/// Callers of every kind. The account that is called has a namespace `ns`.
pub(crate) async fn callers(server: &Standalone) -> Vec<KnownCaller> {
    let owner = tenant(server).await;
    owner.namespace("ns").await;
    let mut found = strangers(server, &owner.rest).await;
    let mut add = |name: &str, kind, rest| found.push(KnownCaller { name: name.to_owned(), kind, rest });
    add("the operator", Kind::Operator, operator(server));
    for scope in SCOPES {
        let key = key(&owner.rest, json!({"scopes": [scope]})).await.0;
        let token = token(&owner.rest, json!({"scopes": [scope]})).await;
        add(&format!("a key for {scope}"), Kind::Scoped(scope), key);
        add(&format!("a token for {scope}"), Kind::Scoped(scope), token);
    }
    let elsewhere = json!({"namespaces": ["elsewhere"]});
    add("a key for another namespace", Kind::Elsewhere, key(&owner.rest, elsewhere.clone()).await.0);
    add("a token for another namespace", Kind::Elsewhere, token(&owner.rest, elsewhere).await);
    let suspended = tenant(server).await;
    suspended.namespace("ns").await;
    add("a suspended account's token", Kind::Suspended, token(&suspended.rest, json!({})).await);
    suspended.change(server, json!({"status": "SUSPENDED"})).await;
    add("a suspended account's key", Kind::Suspended, suspended.rest);
    add("another account's key", Kind::OtherTenant, tenant(server).await.rest);
    found
}

async fn strangers(server: &Standalone, owner: &Rest) -> Vec<KnownCaller> {
    let (revoked, revoked_id) = key(owner, json!({})).await;
    let of_revoked = token(&revoked, json!({})).await;
    owner.call(&format!("DELETE /v1/api-keys/{revoked_id}")).await.ok();
    let soon = rfc3339(instant_ns(Duration::from_millis(1_500)));
    let (expired, _) = key(owner, json!({"expires_at": soon})).await;
    let short = token(owner, json!({"ttl_ms": 1_000})).await;
    let good = token(owner, json!({})).await;
    let other = token(&tenant(server).await.rest, json!({})).await;
    let gone = tenant(server).await;
    operator(server).call(&format!("DELETE /v1/accounts/{}", gone.account)).await.ok();
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
    let stranger = |(name, key): (&str, String)| KnownCaller {
        name: name.to_owned(),
        kind: Kind::Stranger,
        rest: owner.with_key(&key),
    };
    texts.into_iter().map(stranger).collect()
}

/// A key made by the caller, and its id.
async fn key(maker: &Rest, body: Value) -> (Rest, String) {
    let made = maker.json("POST /v1/api-keys", body).await.ok();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (maker.with_key(&text("api_key")), text("key_id"))
}

/// A token for the caller's key.
async fn token(of: &Rest, body: Value) -> Rest {
    let made = of.json("POST /v1/tokens", body).await.ok();
    of.with_key(made["token"].as_str().unwrap())
}
