//! Invalid requests about locks. Every rejection names the field and has no effect.

use holdfast_api::Code;
use serde_json::{Value, json};

use super::tests::TestApi;

const ACQUIRE: &str = "POST /v1/namespaces/ns/locks/l/acquire";
const ACQUIRE_SET: &str = "POST /v1/namespaces/ns/lock-sets/acquire";
const RELEASE_SET: &str = "POST /v1/namespaces/ns/lock-sets/release";

/// Replaces these members of the body; null removes one.
fn with_changes(mut body: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            body.as_object_mut().unwrap().remove(name);
        } else {
            body[name] = value.clone();
        }
    }
    body
}

async fn assert_each_rejected(line: &str, good: Value, cases: impl IntoIterator<Item = (Value, &str)>) {
    let api = TestApi::start().await;
    for (changes, field) in cases {
        let body = with_changes(good.clone(), changes);
        let got = api.expect_error(line, Some(body.clone()), Code::InvalidArgument).await;
        assert_eq!(got.body["field"], field, "{body}: {}", got.body);
        assert!(got.body["detail"].as_str().unwrap().starts_with(field), "{}", got.body);
    }
    let got = api.call("GET /v1/namespaces/ns/locks", None).await;
    assert_eq!(got.body["locks"], json!([]));
    let ok = api.call(line, Some(good)).await;
    assert_eq!(ok.status, 200, "{}", ok.body);
}

#[tokio::test]
async fn of_an_acquire_of_one_lock() {
    let instant = "2099-01-01T00:00:00Z";
    assert_each_rejected(
        ACQUIRE,
        json!({"process_id": "p", "ttl_ms": 60_000}),
        [
            (json!({"process_id": null}), "process_id"),
            (json!({"process_id": "se_1"}), "process_id"),
            (json!({"session_id": "se_1"}), "session_id"),
            (json!({"process_id": null, "session_id": "p"}), "session_id"),
            (json!({"process_id": null, "session_id": "se_1"}), "ttl_ms"),
            (json!({"process_id": null, "session_id": "se_1", "ttl_ms": null, "expires_at": instant}), "expires_at"),
            (json!({"process_id": null, "session_id": "se_1", "holder": ""}), "holder"),
            (json!({"holder": "h"}), "holder"),
            (json!({"ttl_ms": null}), "ttl_ms"),
            (json!({"mode": "write"}), "mode"),
            (json!({"wait_ms": 600_001}), "wait_ms"),
            (json!({"wait_ms": -1}), "wait_ms"),
            (json!({"wait_ms": 1, "ttl_ms": null, "expires_at": rfc3339_soon()}), "expires_at"),
            (json!({"poll_ms": 0}), "poll_ms"),
            (json!({"poll_ms": "5"}), "poll_ms"),
            (json!({"transition_ms": 600_001}), "transition_ms"),
            (json!({"allow_upgrade": 1}), "allow_upgrade"),
            (json!({"fencing_token": 1, "wait_ms": 1}), "fencing_token"),
            (json!({"fencing_token": 1, "allow_upgrade": true}), "fencing_token"),
            (json!({"metadata": {"": "v"}}), "metadata"),
            (json!({"request_id": "r"}), "request_id"),
            (json!({"resources": []}), "resources"),
            (json!({"colour": "red"}), "colour"),
        ],
    )
    .await;
}

#[tokio::test]
async fn of_an_acquire_of_a_set() {
    let deep: Vec<String> = vec!["s".to_owned(); 17];
    let many: Vec<Value> = (0..65).map(|index| json!({"path": [index.to_string()]})).collect();
    assert_each_rejected(
        ACQUIRE_SET,
        json!({"process_id": "p", "ttl_ms": 60_000, "resources": [{"path": ["a"]}]}),
        [
            (json!({"resources": null}), "resources"),
            (json!({"resources": []}), "resources"),
            (json!({"resources": many}), "resources"),
            (json!({"resources": [{"path": ["a"]}, {"mode": "READ"}]}), "resources[1].path"),
            (json!({"resources": [{"path": "a"}]}), "resources[0].path"),
            (json!({"resources": [{"path": ["a"]}, {"path": [""]}]}), "resources[1].path"),
            (json!({"resources": [{"path": ["x".repeat(129)]}]}), "resources[0].path"),
            (json!({"resources": [{"path": deep}]}), "resources[0].path"),
            (json!({"resources": [{"path": ["a"], "mode": "read"}]}), "resources[0].mode"),
            (json!({"resources": [{"path": ["a"], "kind": "x"}]}), "resources[0].kind"),
            (json!({"request_id": ""}), "request_id"),
            (json!({"mode": "READ"}), "mode"),
            (json!({"holder": "h"}), "holder"),
            (json!({"resources": [{"path": ["a"]}, {"path": ["b"]}], "allow_upgrade": true}), "allow_upgrade"),
            (json!({"resources": [{"path": ["a"]}, {"path": ["b"]}], "fencing_token": 1}), "fencing_token"),
        ],
    )
    .await;
}

#[tokio::test]
async fn of_a_release_of_a_set() {
    assert_each_rejected(
        RELEASE_SET,
        json!({"process_id": "p", "resources": [{"path": ["a"]}]}),
        [
            (json!({"resources": null}), "resources"),
            (json!({"resources": null, "all": false}), "resources"),
            (json!({"resources": []}), "resources"),
            (json!({"all": true}), "all"),
            (json!({"resources": [{"path": ["a"], "mode": "READ"}]}), "resources[0].mode"),
            (json!({"resources": [{"path": ["a\u{0}"]}]}), "resources[0].path"),
            (json!({"process_id": null}), "process_id"),
            (json!({"fencing_token": 1}), "fencing_token"),
        ],
    )
    .await;
}

#[tokio::test]
async fn of_calls_by_path_and_of_a_reset() {
    let api = TestApi::start().await;
    for (call, body, field) in [
        ("lock-sets/get", json!({}), "path"),
        ("lock-sets/get", json!({"path": "a"}), "path"),
        ("lock-sets/get", json!({"path": [""]}), "path"),
        ("lock-sets/delete", json!({}), "path"),
        ("lock-sets/check", json!({"path": []}), "fencing_token"),
        ("lock-sets/check", json!({"path": [], "fencing_token": -1}), "fencing_token"),
        ("reset", json!({}), "live_owners"),
        ("reset", json!({"live_owners": null}), "live_owners"),
        ("reset", json!({"live_owners": [""]}), "live_owners[0]"),
        ("reset", json!({"live_owners": [7]}), "live_owners[0]"),
        ("reset", json!({"live_owners": [], "before_revision": "5"}), "before_revision"),
    ] {
        let line = format!("POST /v1/namespaces/ns/{call}");
        let got = api.expect_error(&line, Some(body.clone()), Code::InvalidArgument).await;
        assert_eq!(got.body["field"], field, "{call} {body}: {}", got.body);
    }
}

#[tokio::test]
async fn an_unknown_session_takes_awaits_and_releases_nothing() {
    let api = TestApi::start().await;
    for wait_ms in [0, 5_000] {
        let body = json!({"session_id": "se_unknown", "wait_ms": wait_ms});
        let got = api.expect_error(ACQUIRE, Some(body), Code::SessionNotFound).await;
        assert_eq!(got.body["session_id"], "se_unknown");
    }
    let body = json!({"session_id": "se_unknown"});
    api.expect_error("POST /v1/namespaces/ns/locks/l/release", Some(body), Code::SessionNotFound).await;
}

fn rfc3339_soon() -> String {
    let soon = time::OffsetDateTime::now_utc() + time::Duration::minutes(1);
    soon.format(&time::format_description::well_known::Rfc3339).unwrap()
}
