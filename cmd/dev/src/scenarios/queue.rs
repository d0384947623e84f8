//! Readers and writers in one FIFO queue.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("Any number of readers share a lock: ann and ben read the report")?;
    for who in ["ann", "ben"] {
        let answer = stage.acquire(who, &[("report", "READ")], Value::Null).await?;
        stage.expect_granted(&answer, "readers do not mind each other")?;
    }

    stage.print_step("cay wants to write it, and is ready to wait: wait_ms puts her into the queue")?;
    let cay = stage.acquire_waiting("cay", &[("report", "WRITE")])?;
    stage.wait_for_waiters("report", 1).await?;

    stage.print_step(
        "dan wants to read it now. Readers hold it, but cay was there before him: were late readers let past, a \
               writer could wait for ever",
    )?;
    let answer = stage.acquire("dan", &[("report", "READ")], json!({"wait_ms": 0})).await?;
    stage.expect_refused(&answer, "QUEUED", "only somebody who waits is in the way")?;

    stage.print_step("So dan waits too, behind cay")?;
    let dan = stage.acquire_waiting("dan", &[("report", "READ")])?;
    stage.wait_for_waiters("report", 2).await?;

    stage.print_step("When the first reader leaves, another one still reads, and nothing happens")?;
    stage.release("ann", &["report"]).await?;
    stage.wait_for_waiters("report", 2).await?;

    stage.print_step("When the last reader leaves, the lock goes to cay in the same step. Nobody polls")?;
    stage.release("ben", &["report"]).await?;
    let written = stage.await_grant(cay).await?;
    stage.wait_for_waiters("report", 1).await?;

    stage.print_step("And when cay is done, it goes to dan")?;
    stage.release("cay", &["report"]).await?;
    let read = stage.await_grant(dan).await?;
    stage.check(read > written, format_args!("tokens rise with each grant: {written}, then {read}"))
}
