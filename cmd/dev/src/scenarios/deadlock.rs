//! Two owners that would wait for each other forever.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("ann takes the left fork, ben the right one")?;
    for (who, fork) in [("ann", "left-fork"), ("ben", "right-fork")] {
        let answer = stage.acquire(who, &[(fork, "WRITE")], Value::Null).await?;
        stage.expect_granted(&answer, "it was free")?;
    }

    stage.print_step("ann wants the other one too, and waits for ben")?;
    let ann = stage.acquire_waiting("ann", &[("right-fork", "WRITE")])?;
    stage.wait_for_waiters("right-fork", 1).await?;

    stage.print_step(
        "ben wants the left one. Were he to wait, both would wait for ever; so the service refuses him at once, \
               however long he was ready to wait, and names the circle",
    )?;
    let answer = stage.acquire("ben", &[("left-fork", "WRITE")], json!({"wait_ms": 10_000})).await?;
    stage.expect_refused(&answer, "DEADLOCK", "ben would wait for ann, who waits for ben")?;
    let steps: Vec<Value> = answer["reason"]["cycle"].as_array().cloned().unwrap_or_default();
    let owners: Vec<&str> = steps.iter().filter_map(|step| step["process_id"].as_str()).collect();
    stage.check(
        owners == ["ann", "ben"],
        format_args!("the circle: ben waits for {}", owners.join(", who waits for ")),
    )?;

    stage.print_step("Everybody else keeps waiting: ann still does")?;
    stage.wait_for_waiters("right-fork", 1).await?;

    stage.print_step("ben does the one thing that helps: he gives back what he has, and ann goes on")?;
    stage.release("ben", &["right-fork"]).await?;
    stage.await_grant(ann).await?;
    stage.release("ann", &["left-fork", "right-fork"]).await
}
