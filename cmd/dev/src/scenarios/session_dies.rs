//! A session whose program dies: everything that it held is free soon after.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::stage::Stage;

/// How long the session lives without a sign of life.
const SESSION_TTL_MS: u64 = 2_000;

pub(super) async fn play(stage: &Stage) -> Result<()> {
    stage.say("A worker connects and opens a session that lives for two seconds after its last sign of life")?;
    let mut worker = stage.socket().await?;
    worker.say("open", json!({"process_id": "worker", "ttl_ms": SESSION_TTL_MS, "metadata": {}})).await?;
    let opened = worker.hears("opened").await?;
    let session_id = opened["session_id"].as_str().unwrap_or_default().to_owned();
    stage.seen(session_id.starts_with("se_"), format_args!("the session is {session_id}"))?;

    stage.say(
        "In it the worker takes two locks, by requests that have names. They have no time to live of their own: \
               they last as long as the session",
    )?;
    for (request, lock) in [("r1", "machine-1"), ("r2", "machine-2")] {
        let resources = json!([{"path": [lock], "mode": "WRITE"}]);
        worker.say("lock", json!({"request_id": request, "resources": resources})).await?;
        let state = worker.hears("state").await?;
        stage.seen(state["state"] == "ACQUIRED", format_args!("{lock} is the worker's"))?;
    }

    stage.say("ben waits for one of the machines. As long as the worker gives signs of life, he does so in vain")?;
    let ben = stage.wait("ben", &[("machine-1", "WRITE")])?;
    stage.until_waiting("machine-1", 1).await?;
    worker.say("keepalive", json!({})).await?;
    let kept_alive = worker.hears("kept_alive").await?;
    let last_sign = Instant::now();
    stage.seen(kept_alive["remaining_ms"].as_u64() > Some(0), "the session lives for two seconds from now")?;

    stage.say("The worker dies: its connection breaks off without a word")?;
    drop(worker);
    let session = stage.ask(&format!("GET sessions/{session_id}"), Value::Null).await?;
    stage.seen(
        session["session_id"] == session_id.as_str(),
        "a session is more than its connection: it is still there",
    )?;

    stage.say(
        "A worker that only lost its connection could now resume its session from anywhere. This one does not, so \
               the session ends, and ben goes on at once",
    )?;
    stage.granted_to(ben).await?;
    let silent_for = last_sign.elapsed() + Duration::from_millis(100);
    let told = format!(
        "that was {} ms after the last sign of life, and no sooner than promised",
        last_sign.elapsed().as_millis()
    );
    stage.seen(silent_for >= Duration::from_millis(SESSION_TTL_MS), told)?;

    stage.say("The other lock is free too, and the session is gone for good")?;
    let answer = stage.acquire("ben", &[("machine-2", "WRITE")], Value::Null).await?;
    stage.granted(&answer, "nobody holds it")?;
    let code = stage.fails(&format!("GET sessions/{session_id}")).await?;
    stage.seen(code == "SESSION_NOT_FOUND", "it cannot be resumed any more")
}
