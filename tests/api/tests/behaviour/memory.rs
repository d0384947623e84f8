//! A node whose memory is exhausted: it accepts nothing new, and serves what exists.

use holdfast_testkit::{Standalone, scratch};
use serde_json::json;

use crate::support::{RestClient, SessionSocket, Tenant, create_tenant, lock_message};

/// Nothing ends by itself while a node is filled, however slow its disk is.
const TTL_MS: u64 = 3_600_000;
const SESSION_TTL_MS: u64 = 600_000;
const ACQUIRE: &str = "POST /v1/namespaces/ns/locks/{}/acquire";

fn acquire_line(lock: u32) -> String {
    ACQUIRE.replace("{}", &format!("l{lock}"))
}

/// Acquires locks until the node has no memory for another one. Returns how many it granted.
async fn fill_memory(rest: &RestClient) -> u32 {
    for lock in 0..10_000 {
        let answer = rest.json(&acquire_line(lock), json!({"process_id": "p", "ttl_ms": TTL_MS})).await;
        if answer.status != 200 {
            assert_eq!(answer.header("retry-after"), "5");
            let problem = answer.expect_error("UNAVAILABLE");
            assert!(problem["detail"].as_str().unwrap().contains("memory"), "{problem}");
            return lock;
        }
    }
    panic!("the node takes more than it may");
}

async fn full_node() -> (Standalone, Tenant, u32) {
    let server = Standalone::start(&scratch(), &["--memory-limit", "256KiB"]);
    let tenant = create_tenant(&server).await;
    tenant.create_namespace("ns").await;
    let locks = fill_memory(&tenant.rest).await;
    assert!(locks > 100, "{locks} locks fit");
    (server, tenant, locks)
}

#[tokio::test]
async fn what_is_held_is_extended_and_released_when_there_is_no_room_for_more() {
    let (_server, tenant, locks) = full_node().await;
    let rest = &tenant.rest;
    let taken = rest.json(&acquire_line(0), json!({"process_id": "p", "ttl_ms": TTL_MS})).await.ok();
    assert!(taken["fencing_token"].is_u64() || taken["fencing_token"].is_string(), "{taken}");
    let waits = json!({"process_id": "q", "ttl_ms": 60_000, "wait_ms": 1_000});
    rest.json(&acquire_line(0), waits).await.expect_error("UNAVAILABLE");
    for lock in 0..locks / 2 {
        let release = format!("POST /v1/namespaces/ns/locks/l{lock}/release");
        rest.json(&release, json!({"process_id": "p"})).await.ok();
    }
    rest.json(&acquire_line(locks), json!({"process_id": "p", "ttl_ms": TTL_MS})).await.ok();
}

#[tokio::test]
async fn a_session_keeps_what_it_has_when_there_is_no_room_for_more() {
    let server = Standalone::start(&scratch(), &["--memory-limit", "256KiB"]);
    let tenant = create_tenant(&server).await;
    tenant.create_namespace("ns").await;
    let mut session = SessionSocket::connect(&tenant.rest).await;
    session.open_session(SESSION_TTL_MS).await;
    session.acquire("r", "mine").await;
    fill_memory(&tenant.rest).await;
    session.send(lock_message("more", "more")).await;
    let refused = session.receive().await;
    assert_eq!((&refused["type"], &refused["request_id"]), (&json!("refused"), &json!("more")), "{refused}");
    assert_eq!(refused["reason"]["code"], "UNAVAILABLE", "{refused}");
    session.send(json!({"type": "release", "request_id": "r"})).await;
    session.expect_ready("r").await;
}

#[tokio::test]
async fn a_session_keeps_what_it_has_in_a_table_that_has_no_room_for_more() {
    let server = Standalone::start(&scratch(), &["--soft-memory", "64KiB"]);
    let tenant = create_tenant(&server).await;
    let rest = &tenant.rest;
    rest.json("POST /v1/namespaces", json!({"name": "ns", "durability": "SESSION"})).await.ok();
    let mut session = SessionSocket::connect(rest).await;
    session.send(json!({"type": "open", "process_id": "p", "ttl_ms": 60_000, "keeps_table": true})).await;
    assert_eq!(session.receive().await["type"], "opened");
    let mut granted = 0;
    let refused = loop {
        let name = format!("l{granted}");
        session.send(lock_message(&name, &name)).await;
        let answer = session.receive().await;
        if answer["state"] != "ACQUIRED" {
            break answer;
        }
        granted += 1;
        assert!(granted < 1_000, "the node takes more than it may");
    };
    assert!(granted > 20, "{granted} locks fit");
    assert_eq!(
        (&refused["type"], &refused["reason"]["code"]),
        (&json!("refused"), &json!("QUOTA_EXCEEDED")),
        "{refused}"
    );
    // The log has room: its namespaces go on.
    tenant.create_namespace("full").await;
    rest.json("POST /v1/namespaces/full/locks/x/acquire", json!({"process_id": "p", "ttl_ms": TTL_MS})).await.ok();
    for lock in 0..granted {
        session.send(json!({"type": "release", "request_id": format!("l{lock}")})).await;
        session.expect_ready(&format!("l{lock}")).await;
    }
    session.acquire("again", "again").await;
}
