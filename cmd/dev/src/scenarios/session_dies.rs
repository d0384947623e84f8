//! A session whose program dies: its locks are free soon after.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

/// How long the session lives without keep-alives: longer than the steps before the first one take on a slow disk.
const SESSION_TTL_MS: u64 = 5_000;

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("A worker connects and opens a session that ends five seconds after its last keep-alive")?;
    let mut worker = stage.socket().await?;
    worker.send("open", json!({"process_id": "worker", "ttl_ms": SESSION_TTL_MS, "metadata": {}})).await?;
    let opened = worker.expect_message("opened").await?;
    let session_id = opened["session_id"].as_str().unwrap_or_default().to_owned();
    stage.check(session_id.starts_with("se_"), format_args!("the session is {session_id}"))?;

    stage.print_step(
        "In it the worker takes two locks, by requests that have names. They have no time to live of their own: \
               they last as long as the session",
    )?;
    for (request, lock) in [("r1", "machine-1"), ("r2", "machine-2")] {
        let resources = json!([{"path": [lock], "mode": "WRITE"}]);
        worker.send("lock", json!({"request_id": request, "resources": resources})).await?;
        let state = worker.expect_message("state").await?;
        stage.check(state["state"] == "ACQUIRED", format_args!("{lock} is the worker's"))?;
    }

    stage
        .print_step("ben waits for one of the machines. He does not get it as long as the worker sends keep-alives")?;
    let ben = stage.acquire_waiting("ben", &[("machine-1", "WRITE")])?;
    stage.wait_for_waiters("machine-1", 1).await?;
    worker.send("keepalive", json!({})).await?;
    let kept_alive = worker.expect_message("kept_alive").await?;
    let last_sign = Instant::now();
    stage.check(kept_alive["remaining_ms"].as_u64() > Some(0), "the session lives for five seconds from now")?;

    stage.print_step("The worker dies: its connection breaks off without a word")?;
    drop(worker);
    let session = stage.call(&format!("GET sessions/{session_id}"), Value::Null).await?;
    stage.check(
        session["session_id"] == session_id.as_str(),
        "a session is more than its connection: it is still there",
    )?;

    stage.print_step(
        "A worker that only lost its connection could now resume its session from anywhere. This one does not, so \
               the session ends, and ben goes on at once",
    )?;
    stage.await_grant(ben).await?;
    let silent_for = last_sign.elapsed() + Duration::from_millis(100);
    let told = format!(
        "that was {} ms after the last keep-alive, and no sooner than promised",
        last_sign.elapsed().as_millis()
    );
    stage.check(silent_for >= Duration::from_millis(SESSION_TTL_MS), told)?;

    stage.print_step("The other lock is free too, and the session is gone for good")?;
    let answer = stage.acquire("ben", &[("machine-2", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "nobody holds it")?;
    let code = stage.call_expecting_error(&format!("GET sessions/{session_id}")).await?;
    stage.check(code == "SESSION_NOT_FOUND", "it cannot be resumed any more")
}
