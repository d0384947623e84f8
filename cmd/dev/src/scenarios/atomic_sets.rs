//! Several locks at once: all of them or none.

use anyhow::Result;
use serde_json::{Value, json};

use super::stage::{Stage, segments};

pub(super) async fn play(stage: &Stage) -> Result<()> {
    stage.say("ann works on account-1")?;
    let answer = stage.acquire("ann", &[("account-1", "WRITE")], Value::Null).await?;
    stage.granted(&answer, "it was free")?;

    stage.say("ben moves money from account-1 to account-2, and asks for both in one request")?;
    let both = [("account-1", "WRITE"), ("account-2", "WRITE")];
    let answer = stage.acquire("ben", &both, Value::Null).await?;
    stage.refused(&answer, "HELD", "ann holds one of the two")?;

    stage.say("A request is granted as a whole or not at all, so ben did not get account-2 either")?;
    let answer = stage.ask("POST lock-sets/get", json!({"path": segments("account-2")})).await?;
    stage.seen(answer["lock"]["state"] == "UNLOCKED", "account-2 is free, for ben and for everybody else")?;

    stage.say("ben may wait for both instead. He holds nothing while he waits")?;
    let ben = stage.wait("ben", &both)?;
    stage.until_waiting("account-1", 1).await?;
    stage.until_waiting("account-2", 1).await?;

    stage.say("ann is done, and in the same step ben has both, under one fencing token")?;
    stage.release("ann", &["account-1"]).await?;
    let token = stage.granted_to(ben).await?;
    for account in ["account-1", "account-2"] {
        let answer = stage.ask("POST lock-sets/check", json!({"path": [account], "fencing_token": token})).await?;
        stage.seen(answer["current"] == true, format_args!("{account} is held with token {token}"))?;
    }

    stage.say("One call ends everything that an owner has")?;
    let answer = stage.ask("POST lock-sets/release", json!({"process_id": "ben", "all": true})).await?;
    stage.seen(answer["released"] == true, "both accounts are free again")?;
    let listed = stage.ask("GET locks", Value::Null).await?;
    stage.seen(listed["locks"] == json!([]), "nothing is held in the namespace")
}
