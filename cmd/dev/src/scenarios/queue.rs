//! Readers and writers in one queue: first come, first served.

use anyhow::Result;
use serde_json::{Value, json};

use super::stage::Stage;

pub(super) async fn play(stage: &Stage) -> Result<()> {
    stage.say("Any number of readers share a lock: ann and ben read the report")?;
    for who in ["ann", "ben"] {
        let answer = stage.acquire(who, &[("report", "READ")], Value::Null).await?;
        stage.granted(&answer, "readers do not mind each other")?;
    }

    stage.say("cay wants to write it, and is ready to wait: wait_ms puts her into the queue")?;
    let cay = stage.wait("cay", &[("report", "WRITE")])?;
    stage.until_waiting("report", 1).await?;

    stage.say(
        "dan wants to read it now. Readers hold it, but cay was there before him: were late readers let past, a \
               writer could wait for ever",
    )?;
    let answer = stage.acquire("dan", &[("report", "READ")], json!({"wait_ms": 0})).await?;
    stage.refused(&answer, "QUEUED", "only somebody who waits is in the way")?;

    stage.say("So dan waits too, behind cay")?;
    let dan = stage.wait("dan", &[("report", "READ")])?;
    stage.until_waiting("report", 2).await?;

    stage.say("When the first reader leaves, another one still reads, and nothing happens")?;
    stage.release("ann", &["report"]).await?;
    stage.until_waiting("report", 2).await?;

    stage.say("When the last reader leaves, the lock goes to cay in the same step. Nobody polls")?;
    stage.release("ben", &["report"]).await?;
    let written = stage.granted_to(cay).await?;
    stage.until_waiting("report", 1).await?;

    stage.say("And when cay is done, it goes to dan")?;
    stage.release("cay", &["report"]).await?;
    let read = stage.granted_to(dan).await?;
    stage.seen(read > written, format_args!("tokens rise with each grant: {written}, then {read}"))
}
