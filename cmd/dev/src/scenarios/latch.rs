//! Jobs that are counted once each, and somebody who waits for all of them.

use anyhow::Result;
use serde_json::json;

use super::runner::ScenarioRunner;

/// Longer than the scenario takes.
const WAIT_MS: u64 = 10_000;

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("A nightly report needs three exports. A latch counts them")?;
    let made = stage.call("POST latches/create", json!({"name": "nightly", "total": 3})).await?;
    let id = made["latch"]["id"].clone();
    stage.check(made["latch"]["status"] == "ACTIVE", "it is active until all three are done")?;

    stage.print_step("The report waits. Its call is held back by the service, and costs no write")?;
    let waiting = stage.call_waiting("latches/wait", json!({"name": "nightly", "id": id, "wait_ms": WAIT_MS}))?;

    stage.print_step("Two exports are done, and one of them says so twice, as its first answer was lost")?;
    let count = async |job: &str| {
        let body = json!({"name": "nightly", "id": id, "ids": [job]});
        stage.call("POST latches/count_down", body).await
    };
    count("orders").await?;
    count("stock").await?;
    let again = count("stock").await?;
    stage.check(again["counted"] == 0 && again["latch"]["done"] == 2, "each job counts once, by its name")?;

    stage.print_step("What is missing can be told from what is done")?;
    let shown = stage.call("POST latches/get", json!({"name": "nightly"})).await?;
    stage.check(shown["done"] == json!(["orders", "stock"]), "the invoices are missing")?;

    stage.print_step("The last one is done: the latch is complete in that same step, and whoever waits is told")?;
    count("invoices").await?;
    let waited = stage.await_answer(waiting).await?;
    stage.check(waited["outcome"] == "COMPLETED", "the report goes on")?;

    stage.print_step(
        "Next night the name is used again. A job of last night that comes late does no harm: it has the old id",
    )?;
    stage.call("POST latches/delete", json!({"name": "nightly"})).await?;
    let made = stage.call("POST latches/create", json!({"name": "nightly", "total": 3})).await?;
    stage.check(made["latch"]["id"] != id, "the new latch has another id")?;
    let late = json!({"name": "nightly", "id": id, "ids": ["orders"]});
    let code = stage.post_expecting_error("POST latches/count_down", late).await?;
    stage.check(code == "PRIMITIVE_NOT_FOUND", "it is told that its latch is gone")?;
    let shown = stage.call("POST latches/get", json!({"name": "nightly"})).await?;
    stage.check(shown["latch"]["done"] == 0, "and counted nothing in the new one")
}
