//! A store that rejects a late owner.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::MAX_WAIT;
use super::runner::ScenarioRunner;

/// Time to live of ann's hold.
const ANN_TTL_MS: u64 = 500;

/// A store that is written to under the lock, like a file server or a database. Its only support for locks is that it
/// remembers the highest token.
#[derive(Default)]
struct Store {
    highest: u64,
    text: String,
}

impl Store {
    /// Writes the text; returns true if the write was accepted.
    fn write(&mut self, token: u64, text: &str) -> bool {
        if token < self.highest {
            return false;
        }
        self.highest = token;
        text.clone_into(&mut self.text);
        true
    }
}

pub(super) async fn run(stage: &ScenarioRunner) -> Result<()> {
    let mut store = Store::default();
    stage.print_step("ann takes the lock of a file for half a second, and gets a fencing token with it")?;
    let answer = stage.acquire("ann", &[("file", "WRITE")], json!({"ttl_ms": ANN_TTL_MS})).await?;
    let ann = stage.expect_granted(&answer, "the file was free")?;

    stage.print_step("She writes to the store, which remembers the highest token that it has seen")?;
    stage.check(store.write(ann, "ann was here"), format_args!("the store accepts token {ann}"))?;

    stage.print_step(
        "Then her program stops for a while, as programs do (a long pause, a slow disk), and her time runs out. \
               ben waits for the lock, and gets it",
    )?;
    let ben = stage.acquire_waiting("ben", &[("file", "WRITE")])?;
    let ben = tokio::time::timeout(MAX_WAIT + Duration::from_millis(ANN_TTL_MS), stage.await_grant(ben)).await??;
    stage.check(ben > ann, format_args!("ben's token is greater than any before it: {ben} > {ann}"))?;
    stage.check(store.write(ben, "ben was here"), format_args!("the store accepts token {ben}"))?;

    stage.print_step("ann's program wakes up. It does not know how late it is, and writes")?;
    stage.check(
        !store.write(ann, "ann overwrites ben"),
        format_args!("the store refuses token {ann}: it has seen {ben}"),
    )?;
    stage.check(store.text == "ben was here", "what ben wrote is still there")?;

    stage.print_step(
        "A lock alone could not have done that: no service can stop a program that believes to be in time. ann can \
               also ask whether her token still counts, and extending by token never takes the lock from ben",
    )?;
    let answer = stage.call("POST locks/file/check", json!({"fencing_token": ann})).await?;
    stage.check(answer["current"] == false, "her hold is gone")?;
    let extend = json!({"process_id": "ann", "ttl_ms": 60_000, "fencing_token": ann});
    let answer = stage.call("POST locks/file/acquire", extend).await?;
    stage.expect_refused(&answer, "NOT_HELD", "there is nothing to extend")?;
    let answer = stage.call("GET locks/file", Value::Null).await?;
    let holder = &answer["lock"]["write_lock_holder"]["process_id"];
    stage.check(holder == "ben", "ben holds the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_takes_what_is_not_older_than_what_it_has_seen() {
        let mut store = Store::default();
        assert!(store.write(5, "a") && store.write(5, "b") && store.write(7, "c"));
        assert!(!store.write(6, "d"));
        assert_eq!(store.text, "c");
    }
}
