//! A watcher that loses its connection and misses no event.

use anyhow::Result;
use serde_json::{Value, json};

use super::runner::ScenarioRunner;

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    stage.print_step(
        "A watcher asks for what happens at or below jobs. Events come as they happen, over one HTTP answer that \
               does not end",
    )?;
    let mut events = stage.events("?prefix=jobs", None).await?;

    stage.print_step("Meanwhile ann takes a job and releases it. What happens elsewhere is not told")?;
    let answer = stage.acquire("ann", &[("jobs/1", "WRITE")], Value::Null).await?;
    let token = stage.expect_granted(&answer, "it was free")?;
    let answer = stage.acquire("ann", &[("elsewhere", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "nobody watches this one")?;
    stage.release("ann", &["jobs/1"]).await?;

    let acquired = events.next().await?;
    let is_it = acquired.kind == "ACQUIRED" && acquired.data["fencing_token"] == token;
    stage.check(is_it, format_args!("the grant, at revision {}: that is its fencing token", acquired.id))?;
    let released = events.next().await?;
    stage.check(released.kind == "RELEASED", format_args!("the release, at revision {}", released.id))?;

    stage.print_step(
        "The watcher loses its connection, and misses how ben takes two jobs, one of which runs out, and somebody \
               deletes the other by force",
    )?;
    drop(events);
    let answer = stage.acquire("ben", &[("jobs/2", "WRITE")], Value::Null).await?;
    stage.expect_granted(&answer, "it was free")?;
    let answer = stage.acquire("ben", &[("jobs/3", "READ")], json!({"ttl_ms": 100})).await?;
    stage.expect_granted(&answer, "for a tenth of a second")?;
    stage.call("POST lock-sets/delete", json!({"path": ["jobs", "2"]})).await?;

    stage.print_step(
        "It comes back and says which event it saw last. The service tells everything since, in order, once",
    )?;
    let mut events = stage.events("?prefix=jobs", Some(&released.id)).await?;
    let mut last = released.id.parse().unwrap_or(0);
    let mut kinds = Vec::new();
    for _ in 0..4 {
        let event = events.next().await?;
        let revision: u64 = event.id.parse().unwrap_or(0);
        stage.check(revision > last, format_args!("revision {revision} comes after {last}"))?;
        last = revision;
        kinds.push(event.kind);
    }
    kinds.sort();
    stage.check(kinds == ["ACQUIRED", "ACQUIRED", "DELETED", "EXPIRED"], "two grants, a deletion and an expiry")?;

    stage.print_step(
        "A watcher may also begin at any revision that is still remembered: the last 10,000 events of a namespace",
    )?;
    let mut again = stage.events(&format!("?from_revision={token}"), None).await?;
    let first = again.next().await?;
    stage.check(first.data["revision"] == token, format_args!("revision {token} itself comes first"))
}
