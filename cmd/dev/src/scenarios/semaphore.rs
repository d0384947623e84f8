//! Permits in use at a time, and a queue that nobody passes.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

/// Longer than the scenario takes.
const WAIT_MS: u64 = 10_000;

/// The body of a request for licences.
fn request(who: &str, weight: u64, wait_ms: u64) -> Value {
    json!({
        "name": "licences", "process_id": who, "request_id": "one", "weight": weight, "ttl_ms": 60_000,
        "wait_ms": wait_ms,
    })
}

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("The renderer has three licences")?;
    stage.call("POST semaphores/configure", json!({"name": "licences", "permits": 3})).await?;

    stage.print_step("ann takes two. Her answer is lost and she asks again: it is the same hold, by its request_id")?;
    let first = stage.call("POST semaphores/acquire", request("ann", 2, 0)).await?;
    let again = stage.call("POST semaphores/acquire", request("ann", 2, 0)).await?;
    stage.check(again["fencing_token"] == first["fencing_token"], "the token is the same")?;
    stage.check(again["semaphore"]["in_use"] == 2, "two licences are in use, not four")?;

    stage.print_step("ben needs two as well. One is free, which does not do; so he waits")?;
    let ben = stage.call_waiting("semaphores/acquire", request("ben", 2, WAIT_MS))?;
    stage.wait_for_permit_waiters("licences", 1).await?;

    stage.print_step(
        "cay needs one, and one is free. But ben came before her: were small requests let past, a large one could \
               wait for ever",
    )?;
    let answer = stage.call("POST semaphores/acquire", request("cay", 1, 0)).await?;
    stage.expect_refused(&answer, "QUEUED", "only somebody who waits is in the way")?;

    stage.print_step("ann is done: in the same step her licences go to ben, and one is left for cay")?;
    stage
        .call("POST semaphores/release", json!({"name": "licences", "process_id": "ann", "request_id": "one"}))
        .await?;
    let answer = stage.await_answer(ben).await?;
    let token = stage.expect_granted(&answer, "it was his turn")?;
    stage.check(Some(token) > first["fencing_token"].as_u64(), "tokens rise with each grant")?;
    let answer = stage.call("POST semaphores/acquire", request("cay", 1, 0)).await?;
    stage.expect_granted(&answer, "one was left")?;

    stage.print_step(
        "The contract shrinks to two licences. Nobody loses any; new ones are granted when enough came back",
    )?;
    let answer = stage.call("POST semaphores/configure", json!({"name": "licences", "permits": 2})).await?;
    let semaphore = &answer["semaphore"];
    stage.check(semaphore["in_use"] == 3 && semaphore["available"] == 0, "three are in use, of two")?;

    stage.print_step("Whoever asks for more than there are is told at once, however long he was ready to wait")?;
    let answer = stage.call("POST semaphores/acquire", request("dan", 3, WAIT_MS)).await?;
    stage.expect_refused(&answer, "TOO_LARGE", "that could never be granted")
}
