//! Extension of locks that are held all the time.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Worker;
use crate::clients::Mode;
use crate::load::Recorder;

/// Takes all of a worker's locks.
pub(super) async fn acquire_all(worker: &mut Worker) -> Result<()> {
    for lock in &worker.locks {
        let token = worker.client.acquire(lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
        worker.tokens.push(token);
    }
    Ok(())
}

pub(super) async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) -> Result<()> {
    let turn = worker.next_lock();
    ensure!(worker.client.extend(&worker.locks[turn], worker.tokens[turn]).await?, "the hold was gone");
    recorder.record(&[("extend", due.elapsed())]);
    Ok(())
}
