//! Linearizable reads of locks that are held.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Worker;
use crate::load::Recorder;

pub(super) async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) -> Result<()> {
    let turn = worker.next_lock();
    ensure!(worker.client.get(&worker.locks[turn]).await?, "a held lock is shown as free");
    recorder.record(&[("get", due.elapsed())]);
    Ok(())
}
