//! The lock table of a namespace, which is in the memory of a leader.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::runner::{POLL_INTERVAL, ScenarioRunner};

/// Longer than an election, and the end of all earlier sessions.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(60);

/// The table, as it was printed last.
#[derive(Default)]
pub(super) struct LockTable {
    printed: Value,
}

impl LockTable {
    /// Returns the table as it is, and prints it if it has changed.
    pub(super) async fn read(&mut self, stage: &ScenarioRunner) -> Result<Value> {
        let table = match stage.namespace_view().await {
            Ok(namespace) => namespace["table"].clone(),
            // The namespace itself may have lost its leader with the same node.
            Err(error) if error.has_code("UNAVAILABLE") || error.has_code("DEADLINE_EXCEEDED") => Value::Null,
            Err(error) => return Err(error.into()),
        };
        let progress = match table["state"].as_str() {
            Some(state) => json!({"state": state, "epoch": table["epoch"], "missing": table["missing"],
                "waiting_for": table["waiting_for"]}),
            None => json!("its leader can't be asked"),
        };
        if progress != self.printed {
            stage.print_message("  table:", &progress)?;
            self.printed = progress;
        }
        Ok(table)
    }

    /// Waits until the table of a later epoch grants locks, and prints each change on the way. Returns its epoch.
    pub(super) async fn await_ready(&mut self, stage: &ScenarioRunner, after: u64) -> Result<u64> {
        let deadline = Instant::now() + REBUILD_TIMEOUT;
        loop {
            let table = self.read(stage).await?;
            let epoch = table["epoch"].as_u64().unwrap_or_default();
            if table["state"] == "READY" && epoch > after {
                return Ok(epoch);
            }
            if Instant::now() >= deadline {
                bail!("not as expected: the lock table is not READY after {} s", REBUILD_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
