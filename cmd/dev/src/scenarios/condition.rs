//! Owners that give a lock up until another one signals, and a signal whose receiver leaves.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::{PendingCall, ScenarioRunner};

/// Longer than the scenario takes.
const WAIT_MS: u64 = 10_000;
const LOCK: [(&str, &str); 1] = [("jobs", "WRITE")];

/// Locks the jobs; whoever finds none gives the lock up until "not empty" is signalled.
async fn lock_and_await(stage: &ScenarioRunner, who: &str, wait_ms: u64) -> Result<PendingCall> {
    let locked = stage.acquire(who, &LOCK, json!({})).await?;
    let fencing_token = stage.expect_granted(&locked, "the lock is free")?;
    let body = json!({
        "name": "jobs", "process_id": who, "fencing_token": fencing_token, "condition": "not empty",
        "wait_ms": wait_ms, "ttl_ms": 60_000,
    });
    stage.call_waiting("conditions/await", body)
}

async fn signal(stage: &ScenarioRunner, who: &str) -> Result<Value> {
    stage.call("POST conditions/signal", json!({"name": "jobs", "process_id": who, "condition": "not empty"})).await
}

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("ann has the lock of the jobs, but there is no job: she gives it up until somebody adds one")?;
    let ann = lock_and_await(stage, "ann", WAIT_MS).await?;
    stage.wait_for_awaiting(1).await?;
    stage.print_step("ben comes for a job, too. The lock is free for him, and he awaits the same signal behind ann")?;
    let ben = lock_and_await(stage, "ben", WAIT_MS).await?;
    stage.wait_for_awaiting(2).await?;

    stage.print_step("cay adds a job under the lock, and signals: that wakes one, the one that came first")?;
    stage.acquire("cay", &LOCK, json!({})).await?;
    let answer = signal(stage, "cay").await?;
    stage.check(answer["signalled"] == 1 && answer["awaiting"] == 1, "ann is woken, ben is not")?;
    stage.wait_for_waiters("jobs", 1).await?;

    stage.print_step("cay still has the lock, so ann waits for it. Her call is answered once she has it")?;
    stage.release("cay", &["jobs"]).await?;
    let answer = stage.await_answer(ann).await?;
    stage.expect_granted(&answer, "she has the lock again, with another token")?;
    stage.check(answer["woken"] == "SIGNALLED", "there is a job for her")?;
    stage.release("ann", &["jobs"]).await?;

    stage.print_step("dan awaits a job behind ben; cay adds one, and ben is woken")?;
    let dan = lock_and_await(stage, "dan", WAIT_MS).await?;
    stage.wait_for_awaiting(2).await?;
    stage.acquire("cay", &LOCK, json!({})).await?;
    signal(stage, "cay").await?;
    stage.wait_for_waiters("jobs", 1).await?;

    stage.print_step("ben leaves before he has the lock. The signal is not lost: in the same step it wakes dan")?;
    stage.call("POST lock-sets/release", json!({"process_id": "ben", "all": true})).await?;
    let answer = stage.await_answer(ben).await?;
    stage.expect_refused(&answer, "ENDED", "he waits no more")?;
    stage.wait_for_awaiting(0).await?;
    stage.release("cay", &["jobs"]).await?;
    let answer = stage.await_answer(dan).await?;
    stage.expect_granted(&answer, "he has the lock")?;
    stage.check(answer["woken"] == "SIGNALLED", "the signal was ben's")?;

    stage.print_step("Nobody adds a job for eve: her time is over, and she has the lock again all the same")?;
    stage.release("dan", &["jobs"]).await?;
    let eve = lock_and_await(stage, "eve", 300).await?;
    let answer = stage.await_answer(eve).await?;
    stage.expect_granted(&answer, "the lock is free")?;
    stage.check(answer["woken"] == "ELAPSED", "she was not signalled")?;

    stage.print_step("Only who holds the lock may signal")?;
    let answer = signal(stage, "ann").await?;
    stage.expect_refused(&answer, "NOT_HELD", "eve has the lock")
}
