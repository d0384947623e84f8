//! Locks are paths in a tree: a lock covers everything below it.

use anyhow::Result;
use serde_json::Value;

use super::runner::ScenarioRunner;

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("A lock is a path. ann takes one order of a shop for writing")?;
    let answer = stage.acquire("ann", &[("shop/orders/42", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "nobody was in the way")?;

    stage.print_step("ben wants to read all orders. Order 42 is one of them, and it is being written")?;
    let answer = stage.acquire("ben", &[("shop/orders", "READ")], Value::Null).await?;
    stage.expect_refused(&answer, "DESCENDANT", "somebody else holds something below that path")?;

    stage.print_step("Another order is beside it, not below it: siblings never conflict")?;
    let answer = stage.acquire("ben", &[("shop/orders/43", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "order 43 has nothing to do with order 42")?;

    stage.print_step("The empty path is the whole namespace. cay cannot have it while anything in it is held")?;
    let answer = stage.acquire("cay", &[("", "WRITE")], Value::Null).await?;
    stage.expect_refused(&answer, "DESCENDANT", "everything is below the root")?;

    stage.print_step("When both orders are released, cay takes the whole shop")?;
    stage.release("ann", &["shop/orders/42"]).await?;
    stage.release("ben", &["shop/orders/43"]).await?;
    let answer = stage.acquire("cay", &[("shop", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "nothing below the shop is held any more")?;

    stage.print_step("Now nobody else gets in anywhere below, not even for reading")?;
    let answer = stage.acquire("ann", &[("shop/orders/42", "READ")], Value::Null).await?;
    stage.expect_refused(&answer, "ANCESTOR", "somebody else holds a path above it")?;

    stage.print_step("The owner of a path never conflicts with itself: cay may take an order in its own shop")?;
    let answer = stage.acquire("cay", &[("shop/orders/42", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "it is covered by what cay holds")?;

    stage.print_step("What is held below a path can be listed")?;
    let listed = stage.call("GET locks?prefix=shop", Value::Null).await?;
    let count = listed["locks"].as_array().map_or(0, Vec::len);
    stage.check(count == 2, format_args!("{count} locks are held at or below the shop"))
}
