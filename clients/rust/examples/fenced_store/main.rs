//! Writes to a store that rejects stale tokens, under a lock.
//!
//! ```text
//! HOLDFAST_URL=… HOLDFAST_API_KEY=… cargo run --example fenced_store -- FILE LOCK
//! ```
//!
//! Takes the lock and then does what its standard input says, line by line: `write TEXT` asks the guard before it
//! writes, as a program should; `insist TEXT` does not, as a program that was stopped between asking and writing; the
//! store refuses it then. Stop the process with Ctrl-Z for longer than its time to live, start another one, and go on
//! with `fg`.

mod store;

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_client::{Client, Guard};
use store::FencedStore;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let file = arguments.next().context("usage: fenced_store FILE LOCK")?;
    let lock = arguments.next().context("usage: fenced_store FILE LOCK")?;
    let url = env::var("HOLDFAST_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned());
    let key = env::var("HOLDFAST_API_KEY").context("HOLDFAST_API_KEY: set it to an API key")?;
    let namespace = env::var("HOLDFAST_NAMESPACE").unwrap_or_else(|_| "demo".to_owned());

    let session = Client::new(&url, &key)?.session(namespace).ttl(Duration::from_secs(2)).open().await?;
    let guard = session.mutex(lock).lock().await?;
    println!("holding with token {}", guard.fencing_token());

    let mut store = FencedStore::open(Path::new(&file))?;
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        println!("{}", obey(&line, &guard, &mut store));
    }
    guard.release().await?;
    session.close().await;
    Ok(())
}

/// What came of one line.
fn obey(line: &str, guard: &Guard, store: &mut FencedStore) -> String {
    let (verb, text) = line.split_once(' ').unwrap_or((line, ""));
    let token = match verb {
        "write" => match guard.check() {
            Ok(token) => token,
            Err(error) => return format!("not written: {error}"),
        },
        "insist" => guard.fencing_token(),
        "read" => return store.get(guard.fencing_token()).unwrap_or_else(|error| format!("not read: {error}")),
        _ => return "say `write TEXT`, `insist TEXT` or `read`".to_owned(),
    };
    match store.put(token, text) {
        Ok(()) => format!("written with token {token}"),
        Err(error) => format!("not written: {error}"),
    }
}
