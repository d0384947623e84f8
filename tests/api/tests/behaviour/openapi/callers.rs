//! Every call by every kind of caller answers only what it lists, and those who may call are answered well. Who may is
//! told in `who_may_call`.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::document::{Call, Document};
use crate::support::callers::callers;
use crate::support::rest::{Answer, segment};
use crate::support::{Rest, operator, server, tenant};

/// Things that calls are about, by the names of parameters.
struct Things(BTreeMap<&'static str, String>);

impl Things {
    /// An account with a namespace, a session and a second key.
    async fn of(rest: &Rest, account: &str) -> Self {
        rest.json("POST /v1/namespaces", json!({"name": "ns"})).await.ok();
        let session = json!({"process_id": "p", "ttl_ms": 60_000});
        let session = rest.json("POST /v1/namespaces/ns/sessions", session).await.ok();
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

    fn path(&self, call: &Call) -> String {
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

    async fn ask(&self, call: &Call, rest: &Rest, who: &str) -> Answer {
        let mut line = format!("{} {}", call.method, self.path(call));
        // The operator belongs to no account, so it has to name one where a query can.
        if who == "the operator" && call.query.iter().any(|name| name == "account") {
            line = format!("{line}?account={}", self.0["account"]);
        }
        let answer = match &call.body {
            Some(body) => rest.json(&line, self.body(body)).await,
            None => rest.send(&line, &[], Bytes::new()).await,
        };
        call.check(who, &answer);
        answer
    }
}

/// Whoever may call is answered what was asked for. A WebSocket needs more than a plain call, and says so.
#[track_caller]
fn assert_let_in(answer: &Answer, call: &Call, who: &str) {
    let is_answered = (200..300).contains(&answer.status);
    let is_handshake = call.path.ends_with("/connect") && answer.text.contains("WebSocket");
    assert!(is_answered || is_handshake, "{} {} by {who}: {} {}", call.method, call.path, answer.status, answer.text);
}

#[tokio::test]
async fn whoever_calls_is_answered_only_what_is_listed() {
    let own = tenant(server()).await;
    let things = Things::of(&own.rest, &own.account).await;
    let callers = callers(server()).await;
    for call in Document::read(server()).await.calls() {
        for caller in &callers {
            things.ask(&call, &caller.rest, &caller.name).await;
        }
    }
}

#[tokio::test]
async fn those_who_may_call_are_answered_well() {
    for call in Document::read(server()).await.calls() {
        // A new account for each: some calls end what the others are about.
        let own = tenant(server()).await;
        let things = Things::of(&own.rest, &own.account).await;
        if call.is_public() {
            assert_let_in(&things.ask(&call, &own.rest.with_key(""), "nobody").await, &call, "nobody");
        }
        if call.is_for_operator() {
            let answer = things.ask(&call, &operator(server()), "the operator").await;
            assert_let_in(&answer, &call, "the operator");
        }
        if call.is_for_keys() {
            assert_let_in(&things.ask(&call, &own.rest, "its owner").await, &call, "its owner");
        }
    }
}
