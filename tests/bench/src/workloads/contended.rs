//! One lock that all clients want: each waits for it and gives it back at once.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::Worker;
use crate::load::Recorder;

pub(super) async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) -> Result<()> {
    let lock = &worker.locks[0];
    let token = worker.client.acquire_waiting(lock).await?;
    let acquired = Instant::now();
    ensure!(worker.client.release(lock, token).await?, "the hold was gone");
    recorder.record(&[("wait", acquired - due), ("release", acquired.elapsed())]);
    Ok(())
}
