//! Some who meet again and again, and one that dies before all have come.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

/// Longer than the scenario takes.
const WAIT_MS: u64 = 10_000;

/// The body of an arrival of one of three solvers.
fn arrival(who: &str, generation: Option<&Value>) -> Value {
    let mut body = json!({"name": "rounds", "process_id": who, "parties": 3, "ttl_ms": 60_000, "wait_ms": 0});
    if let Some(generation) = generation {
        body["generation"] = generation.clone();
    }
    body
}

fn waiting(mut arrival: Value) -> Value {
    arrival["wait_ms"] = json!(WAIT_MS);
    arrival
}

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step("Three solvers compute in rounds: nobody begins a round before all have ended the last one")?;
    let ann = stage.call("POST barriers/arrive", arrival("ann", None)).await?;
    let first = &ann["generation"];
    stage.check(ann["outcome"] == "WAITING" && ann["barrier"]["arrived"] == 1, "ann has come, two are missing")?;

    stage
        .print_step("Her answer is lost and she arrives again, with the generation that she knows: she counts once")?;
    let again = stage.call("POST barriers/arrive", arrival("ann", Some(first))).await?;
    stage.check(again["barrier"]["arrived"] == 1, "one has come, not two")?;

    stage.print_step("ben and cay come. The last arrival trips the barrier, for all three, in that same step")?;
    let ben = stage.call_waiting("barriers/arrive", waiting(arrival("ben", Some(first))))?;
    stage.wait_for_arrivals("rounds", 2).await?;
    let cay = stage.call("POST barriers/arrive", arrival("cay", Some(first))).await?;
    let ben = stage.await_answer(ben).await?;
    let ann = stage.call("POST barriers/arrive", arrival("ann", Some(first))).await?;
    for (answer, index) in [(&ann, 0), (&ben, 1), (&cay, 2)] {
        let is_told = answer["outcome"] == "TRIPPED" && answer["index"] == index;
        stage.check(is_told, format_args!("index {index} of generation {first} is told that all came"))?;
    }

    stage.print_step(
        "ann's patience ended at that very moment, and she leaves. But all had come: she is told the same",
    )?;
    let leave = json!({"name": "rounds", "process_id": "ann", "generation": first});
    let left = stage.call("POST barriers/leave", leave).await?;
    stage.check(left["outcome"] == "TRIPPED", "no two of them are ever told different things")?;

    stage.print_step(
        "The next round. ann and ben arrive, and ben dies: his time to live was short, and he did not come again",
    )?;
    let second = &left["next_generation"];
    let ann = stage.call_waiting("barriers/arrive", waiting(arrival("ann", Some(second))))?;
    stage.wait_for_arrivals("rounds", 1).await?;
    let mut dying = arrival("ben", Some(second));
    dying["ttl_ms"] = json!(200);
    stage.call("POST barriers/arrive", dying).await?;
    let ann = stage.await_answer(ann).await?;
    stage.check(ann["outcome"] == "BROKEN", "ann learns that this round will not be complete, and need not wait")?;

    stage.print_step(
        "cay comes late to that round. It is over, and she is told how it ended; nobody waits for the dead",
    )?;
    let cay = stage.call("POST barriers/arrive", arrival("cay", Some(second))).await?;
    stage
        .check(cay["outcome"] == "PAST" && cay["ended"] == "BROKEN", "all three begin again in the next generation")?;
    let third = &cay["next_generation"];
    for who in ["cay", "ann"] {
        stage.call("POST barriers/arrive", arrival(who, Some(third))).await?;
    }
    let ben = stage.call("POST barriers/arrive", arrival("ben", Some(third))).await?;
    stage.check(ben["outcome"] == "TRIPPED" && ben["generation"] == *third, "ben was started again, and all have come")
}
