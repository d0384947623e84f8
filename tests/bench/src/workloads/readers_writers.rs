//! Readers and writers on the same few locks, nine to one. Nobody waits: a refusal is an answer.

use std::time::Instant;

use anyhow::{Result, ensure};
use rand::Rng;

use super::Worker;
use crate::clients::Mode;
use crate::load::Recorder;

const WRITERS: f64 = 0.1;

pub(super) async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) -> Result<()> {
    let lock = &worker.locks[worker.random.random_range(0..worker.locks.len())];
    let mode = if worker.random.random_bool(WRITERS) { Mode::Write } else { Mode::Read };
    let token = worker.client.acquire(lock, mode).await?;
    let answered = Instant::now();
    let Some(token) = token else {
        recorder.refused("acquire", answered - due);
        return Ok(());
    };
    ensure!(worker.client.release(lock, token).await?, "the hold was gone");
    recorder.answered(&[("acquire", answered - due), ("release", answered.elapsed())]);
    Ok(())
}
