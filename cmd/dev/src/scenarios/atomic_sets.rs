//! Several locks at once: all of them or none.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::{ScenarioRunner, segments};

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("ann works on account-1")?;
    let answer = stage.acquire("ann", &[("account-1", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "it was free")?;

    stage.print_step("ben moves money from account-1 to account-2, and asks for both in one request")?;
    let both = [("account-1", "WRITE"), ("account-2", "WRITE")];
    let answer = stage.acquire("ben", &both, Value::Null).await?;
    stage.expect_refused(&answer, "HELD", "ann holds one of the two")?;

    stage.print_step("A request is granted as a whole or not at all, so ben did not get account-2 either")?;
    let answer = stage.call("POST lock-sets/get", json!({"path": segments("account-2")})).await?;
    stage.check(answer["lock"]["state"] == "UNLOCKED", "account-2 is free, for ben and for everybody else")?;

    stage.print_step("ben may wait for both instead. He holds nothing while he waits")?;
    let ben = stage.acquire_waiting("ben", &both)?;
    stage.wait_for_waiters("account-1", 1).await?;
    stage.wait_for_waiters("account-2", 1).await?;

    stage.print_step("ann is done, and in the same step ben has both, under one fencing token")?;
    stage.release("ann", &["account-1"]).await?;
    let token = stage.await_grant(ben).await?;
    for account in ["account-1", "account-2"] {
        let answer = stage.call("POST lock-sets/check", json!({"path": [account], "fencing_token": token})).await?;
        stage.check(answer["current"] == true, format_args!("{account} is held with token {token}"))?;
    }

    stage.print_step("One call ends everything that an owner has")?;
    let answer = stage.call("POST lock-sets/release", json!({"process_id": "ben", "all": true})).await?;
    stage.check(answer["released"] == true, "both accounts are free again")?;
    let listed = stage.call("GET locks", Value::Null).await?;
    stage.check(listed["locks"] == json!([]), "nothing is held in the namespace")
}
