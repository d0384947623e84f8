//! Acquires that wait for their grant.

use std::time::Duration;

use holdfast_api::Code;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::tests::{TestApi, TestResponse};

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_WAIT: Duration = Duration::from_secs(20);

fn path(lock: &str, verb: &str) -> String {
    format!("POST /v1/namespaces/ns/locks/{lock}/{verb}")
}

fn write_request(process_id: &str) -> Value {
    json!({"process_id": process_id, "ttl_ms": 60_000})
}

fn waiting_request(process_id: &str, wait_ms: u64) -> Value {
    json!({"process_id": process_id, "ttl_ms": 60_000, "wait_ms": wait_ms})
}

async fn acquire(api: &TestApi, lock: &str, body: Value) -> TestResponse {
    let got = api.call(&path(lock, "acquire"), Some(body)).await;
    assert_eq!(got.status, 200, "{}", got.body);
    got
}

async fn acquire_granted(api: &TestApi, lock: &str, process_id: &str) -> u64 {
    let got = acquire(api, lock, write_request(process_id)).await;
    assert_eq!(got.body["success"], true, "{}", got.body);
    got.body["fencing_token"].as_u64().unwrap()
}

async fn release(api: &TestApi, lock: &str, process_id: &str) {
    let got = api.call(&path(lock, "release"), Some(json!({"process_id": process_id}))).await;
    assert_eq!(got.body["released"], true, "{}", got.body);
}

/// Waits until this many requests wait for a lock.
async fn wait_for_queue(api: &TestApi, lock: &str, waiting: u64) {
    let looking = async {
        while api.call(&format!("GET /v1/namespaces/ns/locks/{lock}"), None).await.body["lock"]["waiting"] != waiting {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, looking).await.expect("the queue gets there in good time");
}

/// Starts a call and returns once its request is queued.
async fn spawn_queued(api: &TestApi, lock: &str, body: Value, waiting: u64) -> JoinHandle<TestResponse> {
    let (caller, name) = (api.clone(), lock.to_owned());
    let call = tokio::spawn(async move { acquire(&caller, &name, body).await });
    wait_for_queue(api, lock, waiting).await;
    call
}

#[tokio::test]
async fn a_waiting_call_is_answered_when_the_lock_is_released() {
    let api = TestApi::start().await;
    let first = acquire_granted(&api, "l", "p").await;
    let second = spawn_queued(&api, "l", waiting_request("q", 60_000), 1).await;
    let third = spawn_queued(&api, "l", waiting_request("r", 60_000), 2).await;
    release(&api, "l", "p").await;
    let got = second.await.unwrap();
    assert_eq!((&got.body["success"], &got.body["lock"]["waiting"]), (&json!(true), &json!(1)), "{}", got.body);
    let token = got.body["fencing_token"].as_u64().unwrap();
    assert!(token > first && !third.is_finished());
    release(&api, "l", "q").await;
    assert!(third.await.unwrap().body["fencing_token"].as_u64().unwrap() > token);
}

#[tokio::test]
async fn a_wait_that_ends_first_is_told_as_such() {
    let api = TestApi::start().await;
    acquire_granted(&api, "l", "p").await;
    let got = acquire(&api, "l", waiting_request("q", 30)).await;
    assert_eq!((&got.body["success"], &got.body["reason"]["code"]), (&json!(false), &json!("TIMED_OUT")));
    assert_eq!(got.body["lock"]["waiting"], 0);
    assert!(got.body["reason"].get("cycle").is_none() && got.body.get("fencing_token").is_none());
}

#[tokio::test]
async fn a_poll_that_ends_keeps_the_place_for_the_next_call() {
    let api = TestApi::start().await;
    acquire_granted(&api, "l", "p").await;
    let mut poll = waiting_request("q", 60_000);
    poll["poll_ms"] = json!(20);
    let got = acquire(&api, "l", poll.clone()).await;
    let reason = &got.body["reason"];
    assert_eq!((&reason["code"], &reason["queue_position"]), (&json!("QUEUED"), &json!(0)), "{}", got.body);
    assert_eq!((&reason["blockers"][0]["process_id"], &reason["blockers"][0]["waiting"]), (&json!("p"), &json!(false)));
    let later = spawn_queued(&api, "l", waiting_request("r", 60_000), 2).await;
    let got = acquire(&api, "l", poll.clone()).await;
    assert_eq!((&got.body["reason"]["code"], &got.body["reason"]["queue_position"]), (&json!("QUEUED"), &json!(0)));
    // A repeat that does not wait keeps the queued request too.
    let got = acquire(&api, "l", write_request("q")).await;
    assert_eq!(got.body["reason"]["code"], "QUEUED");
    release(&api, "l", "p").await;
    let got = acquire(&api, "l", poll).await;
    assert_eq!((&got.body["success"], later.is_finished()), (&json!(true), false), "{}", got.body);
    later.abort();
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_queue() {
    let api = TestApi::start().await;
    acquire_granted(&api, "l", "p").await;
    let gone = spawn_queued(&api, "l", waiting_request("q", 60_000), 1).await;
    gone.abort();
    wait_for_queue(&api, "l", 0).await;
    release(&api, "l", "p").await;
    acquire_granted(&api, "l", "r").await;
}

#[tokio::test]
async fn a_deadline_of_the_callers_own_ends_a_wait_and_its_place() {
    let api = TestApi::start().await;
    acquire_granted(&api, "l", "p").await;
    let got = api.call_within("100", &path("l", "acquire"), Some(waiting_request("q", 60_000))).await;
    assert_eq!(got.code(), "DEADLINE_EXCEEDED", "{}", got.body);
    wait_for_queue(&api, "l", 0).await;
}

#[tokio::test]
async fn whoever_would_wait_for_itself_is_told_the_cycle() {
    let api = TestApi::start().await;
    acquire_granted(&api, "a", "p").await;
    acquire_granted(&api, "b", "q").await;
    let other = spawn_queued(&api, "b", waiting_request("p", 60_000), 1).await;
    let got = acquire(&api, "a", waiting_request("q", 60_000)).await;
    let reason = &got.body["reason"];
    assert_eq!(reason["code"], "DEADLOCK", "{}", got.body);
    let step = |who: &str, lock: &str| json!({"process_id": who, "session_id": null, "holder": null, "path": [lock], "waiting": false});
    assert_eq!(reason["cycle"], json!([step("p", "a"), step("q", "b")]));
    assert!(!other.is_finished());
    release(&api, "b", "q").await;
    assert_eq!(other.await.unwrap().body["success"], true);
}

#[tokio::test]
async fn a_sole_reader_that_may_becomes_the_writer_and_back() {
    let api = TestApi::start().await;
    let ask = |process_id: &str, mode: &str, wait_ms: u64| json!({"process_id": process_id, "ttl_ms": 60_000, "mode": mode, "allow_upgrade": true, "wait_ms": wait_ms});
    let read = acquire(&api, "l", ask("p", "READ", 0)).await.body["fencing_token"].as_u64().unwrap();
    let mut body = ask("p", "WRITE", 0);
    body["allow_upgrade"] = json!(false);
    assert_eq!(acquire(&api, "l", body).await.body["reason"]["code"], "UPGRADE");
    let upgraded = acquire(&api, "l", ask("p", "WRITE", 0)).await;
    assert!(upgraded.body["fencing_token"].as_u64().unwrap() > read, "{}", upgraded.body);
    assert_eq!(upgraded.body["lock"]["state"], "WRITE_LOCKED");
    let weaker = acquire(&api, "l", ask("p", "READ", 0)).await;
    assert_eq!(weaker.body["fencing_token"], upgraded.body["fencing_token"]);

    acquire(&api, "l", ask("q", "READ", 0)).await;
    let first = spawn_queued(&api, "l", ask("p", "WRITE", 60_000), 1).await;
    // Both wait for the other to stop reading: the second could never be granted.
    let second = acquire(&api, "l", ask("q", "WRITE", 60_000)).await;
    assert_eq!(second.body["reason"]["code"], "UPGRADE");
    release(&api, "l", "q").await;
    assert_eq!(first.await.unwrap().body["lock"]["state"], "WRITE_LOCKED");
}

#[tokio::test]
async fn a_wait_counts_once_and_against_the_limit_of_waits() {
    let api = TestApi::start().await;
    acquire_granted(&api, "l", "p").await;
    let too_long = waiting_request("q", 600_001);
    let got = api.expect_error(&path("l", "acquire"), Some(too_long), Code::InvalidArgument).await;
    assert_eq!(got.body["field"], "wait_ms");
    wait_for_queue(&api, "l", 0).await;
}
