//! Holds of named members, and a queue in which a request for one member delays only requests for the same member.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

/// Longer than the scenario takes.
const WAIT_MS: u64 = 10_000;

/// The body of a request for any databases.
fn some(who: &str, count: u64, wait_ms: u64) -> Value {
    json!({
        "name": "databases", "process_id": who, "request_id": "one", "count": count, "ttl_ms": 60_000,
        "wait_ms": wait_ms,
    })
}

/// The body of a request for one database by its name.
fn one(who: &str, member: &str, wait_ms: u64) -> Value {
    json!({
        "name": "databases", "process_id": who, "request_id": "one", "member": member, "ttl_ms": 60_000,
        "wait_ms": wait_ms,
    })
}

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("There are three test databases")?;
    let members = json!([{"name": "db-1"}, {"name": "db-2"}, {"name": "db-3"}]);
    stage.call("POST pools/configure", json!({"name": "databases", "members": members})).await?;

    stage.print_step("ann takes two. Her answer is lost and she asks again: it is the same hold, with the same two")?;
    let first = stage.call("POST pools/take", some("ann", 2, 0)).await?;
    let again = stage.call("POST pools/take", some("ann", 2, 0)).await?;
    stage.check(again["members"] == first["members"], "the databases are the same")?;
    stage.check(again["pool"]["in_use"] == 2, "two are in use, not four")?;

    stage.print_step("ben needs db-1, which ann has; so he waits")?;
    let ben = stage.call_waiting("pools/take", one("ben", "db-1", WAIT_MS))?;
    stage.wait_for_member_waiters("databases", 1).await?;

    stage.print_step("cay needs any. ben holds up only those who want db-1, so she has the third at once")?;
    let answer = stage.call("POST pools/take", some("cay", 1, 0)).await?;
    stage.expect_granted(&answer, "db-3 is free")?;

    stage.print_step("ann returns db-1 and keeps the other: in the same step ben has it")?;
    let release = json!({"name": "databases", "process_id": "ann", "request_id": "one", "members": ["db-1"]});
    stage.call("POST pools/release", release).await?;
    let answer = stage.await_answer(ben).await?;
    let token = stage.expect_granted(&answer, "it was his turn")?;
    stage.check(Some(token) > first["fencing_token"].as_u64(), "the token is higher than ann's")?;

    stage.print_step("db-2 is taken away while ann works with it: she keeps it, and then it is gone")?;
    let answer = stage.call("POST pools/change", json!({"name": "databases", "remove": ["db-2"]})).await?;
    stage.check(answer["pool"]["leaving"] == 1, "one member leaves")?;
    stage.call("POST pools/release", json!({"name": "databases", "process_id": "ann", "request_id": "one"})).await?;

    stage.print_step("Whoever asks for what there is not is told at once, however long he was ready to wait")?;
    let answer = stage.call("POST pools/take", one("dan", "db-2", WAIT_MS)).await?;
    stage.expect_refused(&answer, "NO_MEMBER", "that could never be granted")
}
