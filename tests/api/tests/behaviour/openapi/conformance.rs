//! Every call by every kind of caller answers only what it lists, and those who may call are answered well. Who may is
//! told in `who_may_call`.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::document::{Document, Operation};
use crate::support::callers::callers;
use crate::support::segment;
use crate::support::{RestClient, create_tenant, operator_client, server};
use holdfast_testkit::Response;

/// Things that calls are about, by the names of parameters.
struct Fixtures(BTreeMap<&'static str, String>);

impl Fixtures {
    /// An account with a namespace, a session, a latch, semaphores, a pool, a barrier and a second key.
    async fn create(rest: &RestClient, account: &str) -> Self {
        rest.json("POST /v1/namespaces", json!({"name": "ns"})).await.ok();
        let session = json!({"process_id": "p", "ttl_ms": 60_000});
        let session = rest.json("POST /v1/namespaces/ns/sessions", session).await.ok();
        // As the examples call it.
        rest.json("POST /v1/namespaces/ns/latches/create", json!({"name": "nightly", "total": 3})).await.ok();
        for name in ["licences", "downloads"] {
            let permits = json!({"name": name, "permits": 10});
            rest.json("POST /v1/namespaces/ns/semaphores/configure", permits).await.ok();
        }
        let members = json!({"name": "databases", "members": [{"name": "db-1"}, {"name": "db-2"}]});
        rest.json("POST /v1/namespaces/ns/pools/configure", members).await.ok();
        let parties = json!({"name": "rounds", "parties": 4});
        rest.json("POST /v1/namespaces/ns/barriers/configure", parties).await.ok();
        let key = rest.json("POST /v1/api-keys", json!({})).await.ok();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Self(BTreeMap::from([
            ("account", account.to_owned()),
            ("key_id", text(&key["key_id"])),
            ("namespace", "ns".to_owned()),
            ("name", "l".to_owned()),
            ("session", text(&session["session_id"])),
        ]))
    }

    fn path(&self, call: &Operation) -> String {
        let filled =
            call.path.split('/').map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                None => part.to_owned(),
                Some(name) => segment(self.0.get(name).unwrap_or_else(|| panic!("the tests have no {name}"))),
            });
        filled.collect::<Vec<_>>().join("/")
    }

    /// The example, with an address that no other account has.
    fn body(&self, example: &Value) -> Value {
        let mut body = example.clone();
        if let Some(email) = body.get_mut("email") {
            *email = json!(format!("made-beside-{}@example.com", self.0["account"]));
        }
        body
    }

    async fn send(&self, call: &Operation, rest: &RestClient, who: &str) -> Response {
        let mut line = format!("{} {}", call.method, self.path(call));
        // The operator belongs to no account, so it has to name one where a query can.
        if who == "the operator" && call.query.iter().any(|name| name == "account") {
            line = format!("{line}?account={}", self.0["account"]);
        }
        let answer = match &call.body {
            Some(body) => rest.json(&line, self.body(body)).await,
            None => rest.send(&line, &[], Bytes::new()).await,
        };
        call.check_response(who, &answer);
        answer
    }
}

/// A client with permission gets the documented answer. A WebSocket needs more, which its answer says.
#[track_caller]
fn assert_authorized(answer: &Response, call: &Operation, who: &str) {
    let is_answered = (200..300).contains(&answer.status);
    let is_handshake = call.path.ends_with("/connect") && answer.text.contains("WebSocket");
    assert!(is_answered || is_handshake, "{} {} by {who}: {} {}", call.method, call.path, answer.status, answer.text);
}

#[tokio::test]
async fn whoever_calls_is_answered_only_what_is_listed() {
    let own = create_tenant(server()).await;
    let things = Fixtures::create(&own.rest, &own.account).await;
    let callers = callers(server()).await;
    for call in Document::fetch(server()).await.operations() {
        for caller in &callers {
            things.send(&call, &caller.rest, &caller.name).await;
        }
    }
}

#[tokio::test]
async fn those_who_may_call_are_answered_well() {
    for call in Document::fetch(server()).await.operations() {
        // A new account for each: some calls end what the others are about.
        let own = create_tenant(server()).await;
        let things = Fixtures::create(&own.rest, &own.account).await;
        if call.is_public() {
            assert_authorized(&things.send(&call, &own.rest.with_key(""), "nobody").await, &call, "nobody");
        }
        if call.is_for_operator() {
            let answer = things.send(&call, &operator_client(server()), "the operator").await;
            assert_authorized(&answer, &call, "the operator");
        }
        if call.is_for_keys() {
            assert_authorized(&things.send(&call, &own.rest, "its owner").await, &call, "its owner");
        }
    }
}
