//! Requests to release a lock, first polite and then by force, and a lock with a minimum hold time.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

/// How long the holder may go on once it is forced.
const WITHIN_MS: u64 = 300;

async fn ask_release(stage: &ScenarioRunner, reason: &str, more: Value) -> Result<Value> {
    let mut body = json!({"path": ["deploy"], "reason": reason});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    let answer = stage.call("POST lock-sets/ask-release", body).await?;
    stage.check(answer["asked"] == 1, "one holder is asked")?;
    Ok(answer)
}

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    ask_back(stage).await?;
    keep_at_least(stage).await
}

async fn ask_back(stage: &ScenarioRunner) -> Result<()> {
    let deploy = [("deploy", "WRITE")];
    stage.print_step("ann deploys: she holds the lock, as a process without a connection")?;
    let first = stage.acquire("ann", &deploy, json!({})).await?;
    let token = stage.expect_granted(&first, "the lock is free")?;

    stage.print_step("ben needs it and asks. Nothing happens by itself: ann still holds the lock")?;
    let answer = ask_release(stage, "a fix for the checkout", json!({"within_ms": 60_000})).await?;
    let holder = &answer["lock"]["write_lock_holder"];
    stage.check(holder["process_id"] == "ann", "the lock is ann's")?;

    stage.print_step("ann learns of it when she extends her hold: who asks, why, and how soon it is wanted")?;
    let extended = stage.acquire("ann", &deploy, json!({"fencing_token": token})).await?;
    let asked = &extended["locks"][0]["write_lock_holder"]["release_requested"];
    stage.check(asked["reason"] == "a fix for the checkout" && asked["force"] == false, "she is asked politely")?;
    stage.release("ann", &["deploy"]).await?;

    stage.print_step("cay holds it by a session. A holder with a connection is told at once")?;
    let mut cay = stage.socket().await?;
    cay.send("open", json!({"process_id": "cay", "ttl_ms": 60_000, "metadata": {}})).await?;
    cay.expect_message("opened").await?;
    let resources = json!([{"path": ["deploy"], "mode": "WRITE"}]);
    cay.send("lock", json!({"request_id": "r", "resources": resources})).await?;
    let state = cay.expect_message("state").await?;
    stage.check(state["state"] == "ACQUIRED", "the lock is cay's, and no request came with it")?;
    ask_release(stage, "when you are done", json!({})).await?;
    let told = cay.expect_message("release_requested").await?;
    let is_meant = told["fencing_token"] == state["fencing_token"];
    stage.check(is_meant && told["force"] == false, "she is told which hold is meant")?;

    stage.print_step(format_args!(
        "cay does not react. ben waits, and asks with force: what is still held {WITHIN_MS} ms from now ends then, \
         also if cay extends it"
    ))?;
    let ben = stage.acquire_waiting("ben", &deploy)?;
    stage.wait_for_waiters("deploy", 1).await?;
    ask_release(stage, "the fix is urgent", json!({"within_ms": WITHIN_MS, "force": true})).await?;
    let told = cay.expect_message("release_requested").await?;
    stage.check(told["force"] == true, "she is told that this one is meant")?;
    stage.await_grant(ben).await?;
    let revoked = cay.expect_message("revoked").await?;
    stage.check(revoked["reason"] == "DELETED", "cay is told that she lost it")?;
    stage.release("ben", &["deploy"]).await
}

async fn keep_at_least(stage: &ScenarioRunner) -> Result<()> {
    let job = [("nightly", "WRITE")];
    stage.print_step(
        "A job shall run once a night, on whichever machine is first. Clocks differ, so the lock is kept for a minute \
         from its grant, even if the job is done in no time",
    )?;
    let one = stage.acquire("machine-1", &job, json!({"at_least_ms": 60_000})).await?;
    let token = stage.expect_granted(&one, "it is the first")?;
    stage.release("machine-1", &["nightly"]).await?;

    stage.print_step("The clock of the other machine is late: it finds the lock free of a holder, and not free")?;
    let two = stage.acquire("machine-2", &job, json!({})).await?;
    stage.expect_refused(&two, "TRANSITION", "the minute is not over")?;

    stage.print_step("Only its owner may take it again, as a new hold")?;
    let again = stage.acquire("machine-1", &job, json!({})).await?;
    let next = stage.expect_granted(&again, "it was its own")?;
    stage.check(next > token, "its token is a new one")
}
