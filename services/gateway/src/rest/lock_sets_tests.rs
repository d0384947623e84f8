//! Several paths at once, trees of locks, and resets.

use holdfast_api::Code;
use serde_json::{Value, json};

use super::tests::{TestApi, TestResponse};

async fn post(api: &TestApi, call: &str, body: Value) -> TestResponse {
    api.call(&format!("POST /v1/namespaces/ns/{call}"), Some(body)).await
}

/// A set of one owner for a minute, each resource like `READ a/b`.
fn set_request(process_id: &str, resources: &[&str]) -> Value {
    let resource = |text: &&str| {
        let (mode, path) = text.split_once(' ').unwrap();
        json!({"path": segments(path), "mode": mode})
    };
    let resources: Vec<Value> = resources.iter().map(resource).collect();
    json!({"process_id": process_id, "ttl_ms": 60_000, "resources": resources})
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).collect()
}

async fn acquire_granted(api: &TestApi, process_id: &str, resources: &[&str]) -> u64 {
    let got = post(api, "lock-sets/acquire", set_request(process_id, resources)).await;
    assert_eq!(got.body["success"], true, "{}", got.body);
    got.body["fencing_token"].as_u64().unwrap()
}

async fn refusal_reason(api: &TestApi, process_id: &str, resources: &[&str]) -> String {
    let got = post(api, "lock-sets/acquire", set_request(process_id, resources)).await;
    assert_eq!((got.status.as_u16(), &got.body["success"]), (200, &json!(false)), "{}", got.body);
    assert!(got.body.get("fencing_token").is_none());
    got.body["reason"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_set_is_granted_as_a_whole_and_shown_in_order_of_path() {
    let api = TestApi::start().await;
    let token = acquire_granted(&api, "p", &["WRITE b", "READ a", "READ b"]).await;
    let got = post(&api, "lock-sets/acquire", set_request("q", &["READ c", "READ a", "READ b"])).await;
    assert_eq!((&got.body["success"], &got.body["reason"]["code"]), (&json!(false), &json!("HELD")), "{}", got.body);
    let shown: Vec<_> =
        got.body["locks"].as_array().unwrap().iter().map(|lock| (&lock["name"], &lock["state"])).collect();
    let (a, b, c) = (json!("a"), json!("b"), json!("c"));
    let (read, write, free) = (json!("READ_LOCKED"), json!("WRITE_LOCKED"), json!("UNLOCKED"));
    assert_eq!(shown, [(&a, &read), (&b, &write), (&c, &free)]);
    assert!(got.body.get("lock").is_none());

    // Existing holds keep their token; the token of the response belongs to the new holds.
    let more = acquire_granted(&api, "p", &["WRITE b", "WRITE d"]).await;
    assert!(more > token);
    let check = async |path: &str, token: u64| {
        post(&api, "lock-sets/check", json!({"path": segments(path), "fencing_token": token})).await.body["current"]
            .clone()
    };
    assert_eq!([check("b", token).await, check("b", more).await, check("d", more).await], [true, false, true]);

    let body = json!({"process_id": "p", "resources": [{"path": ["b"]}, {"path": ["none"]}]});
    let got = post(&api, "lock-sets/release", body).await;
    assert_eq!((&got.body["released"], got.body["locks"].as_array().unwrap().len()), (&json!(true), 2), "{}", got.body);
    acquire_granted(&api, "q", &["READ c", "READ a", "READ b"]).await;
    let got = post(&api, "lock-sets/release", json!({"process_id": "p", "all": true})).await;
    assert_eq!(got.body["released"], true);
    acquire_granted(&api, "r", &["WRITE d"]).await;
}

#[tokio::test]
async fn a_path_excludes_what_is_above_and_below_it() {
    let api = TestApi::start().await;
    acquire_granted(&api, "p", &["WRITE user"]).await;
    assert_eq!(refusal_reason(&api, "q", &["READ user/it/ann"]).await, "ANCESTOR");
    assert_eq!(refusal_reason(&api, "q", &["READ "]).await, "DESCENDANT");
    assert_eq!(refusal_reason(&api, "q", &["READ free", "READ user"]).await, "HELD");
    let own = acquire_granted(&api, "p", &["WRITE user/it"]).await;
    acquire_granted(&api, "q", &["WRITE users", "READ free"]).await;
    let got = post(&api, "lock-sets/get", json!({"path": ["user", "it"]})).await;
    assert_eq!(got.body["lock"]["write_lock_holder"]["fencing_token"], own);
    assert_eq!((&got.body["lock"]["name"], &got.body["lock"]["path"]), (&Value::Null, &json!(["user", "it"])));
    let got = api.call("GET /v1/namespaces/ns/locks?prefix=user", None).await;
    let paths: Vec<_> = got.body["locks"].as_array().unwrap().iter().map(|lock| lock["path"].clone()).collect();
    assert_eq!(paths, [json!(["user"]), json!(["user", "it"])]);
}

#[tokio::test]
async fn the_whole_namespace_is_a_lock_like_any_other() {
    let api = TestApi::start().await;
    let token = acquire_granted(&api, "p", &["WRITE "]).await;
    assert_eq!(refusal_reason(&api, "q", &["READ x"]).await, "ANCESTOR");
    let got = post(&api, "lock-sets/get", json!({"path": []})).await;
    assert_eq!((&got.body["lock"]["state"], &got.body["lock"]["path"]), (&json!("WRITE_LOCKED"), &json!([])));
    let got = post(&api, "lock-sets/check", json!({"path": [], "fencing_token": token})).await;
    assert_eq!((&got.body["current"], &got.body["lock"]["name"]), (&json!(true), &Value::Null));
    let got = post(&api, "lock-sets/delete", json!({"path": []})).await;
    assert_eq!((got.status.as_u16(), got.body), (204, Value::Null));
    acquire_granted(&api, "q", &["READ x"]).await;
}

#[tokio::test]
async fn a_request_id_belongs_to_one_set() {
    let api = TestApi::start().await;
    acquire_granted(&api, "p", &["WRITE a"]).await;
    let mut first = set_request("q", &["WRITE a"]);
    first["request_id"] = json!("r");
    first["wait_ms"] = json!(60_000);
    first["poll_ms"] = json!(1);
    let got = post(&api, "lock-sets/acquire", first.clone()).await;
    assert_eq!(got.body["reason"]["code"], "QUEUED", "{}", got.body);
    let mut other = first.clone();
    other["resources"] = json!([{"path": ["b"]}]);
    let line = "POST /v1/namespaces/ns/lock-sets/acquire";
    let got = api.expect_error(line, Some(other), Code::InvalidArgument).await;
    assert_eq!(got.body["field"], "request_id");
    let got = post(&api, "lock-sets/release", json!({"process_id": "q", "all": true})).await;
    assert_eq!(got.body["released"], true, "a wait ends like a hold");
}

#[tokio::test]
async fn a_reset_ends_what_owners_have_that_are_not_listed() {
    let api = TestApi::start().await;
    let old = acquire_granted(&api, "p", &["WRITE a"]).await;
    acquire_granted(&api, "q", &["WRITE b", "READ c"]).await;
    let young = acquire_granted(&api, "r", &["WRITE d"]).await;
    let got = post(&api, "reset", json!({"live_owners": ["q"], "before_revision": young})).await;
    assert_eq!(got.body, json!({"removed_holds": 1, "removed_waiters": 0}));
    let check = async |path: &str, token: u64| {
        post(&api, "lock-sets/check", json!({"path": [path], "fencing_token": token})).await.body["current"].clone()
    };
    assert_eq!([check("a", old).await, check("d", young).await], [false, true]);
    let got = post(&api, "reset", json!({"live_owners": []})).await;
    assert_eq!(got.body, json!({"removed_holds": 3, "removed_waiters": 0}));
    let got = post(&api, "reset", json!({"live_owners": []})).await;
    assert_eq!(got.body, json!({"removed_holds": 0, "removed_waiters": 0}));
}

#[tokio::test]
async fn a_session_holds_as_long_as_it_lives_and_its_holders_exclude_each_other() {
    let api = TestApi::start().await;
    let made = post(&api, "sessions", json!({"process_id": "p", "ttl_ms": 60_000})).await;
    let session = made.body["session_id"].as_str().unwrap().to_owned();
    let ask = |holder: &str| json!({"session_id": session, "holder": holder, "resources": [{"path": ["a"]}]});
    let got = post(&api, "lock-sets/acquire", ask("first")).await;
    let shown = &got.body["locks"][0]["write_lock_holder"];
    assert_eq!((&shown["process_id"], &shown["session_id"]), (&json!("p"), &json!(session)), "{}", got.body);
    assert_eq!((&shown["expires_at"], &shown["remaining_ms"]), (&Value::Null, &Value::Null));
    let got = post(&api, "lock-sets/acquire", ask("second")).await;
    assert_eq!((&got.body["success"], &got.body["reason"]["blockers"][0]["holder"]), (&json!(false), &json!("first")));

    let extended = json!({"session_id": session, "holder": "first", "metadata": {"k": "v"}});
    let got = post(&api, "locks/a/acquire", extended).await;
    assert_eq!(got.body["lock"]["write_lock_holder"]["metadata"], json!({"k": "v"}), "{}", got.body);
    let mut timed = ask("first");
    timed["ttl_ms"] = json!(1_000);
    let line = "POST /v1/namespaces/ns/lock-sets/acquire";
    assert_eq!(api.expect_error(line, Some(timed), Code::InvalidArgument).await.body["field"], "ttl_ms");
    let got = post(&api, "lock-sets/release", json!({"session_id": session, "all": true})).await;
    assert_eq!((&got.body["released"], &got.body["locks"][0]["state"]), (&json!(true), &json!("UNLOCKED")));
}
