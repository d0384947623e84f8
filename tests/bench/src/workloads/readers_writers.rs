//! Readers and writers on the same few trees, nine to one: readers take leaves, writers what is above some of them. Nobody
//! waits: a refusal is an answer.

use std::time::Instant;

use anyhow::{Result, ensure};
use rand::Rng;

use super::Worker;
use crate::clients::Mode;
use crate::load::Recorder;

const WRITER_RATIO: f64 = 0.1;

pub(super) async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) -> Result<()> {
    let leaf = &worker.locks[worker.random.random_range(0..worker.locks.len())];
    let (lock, mode) = match worker.random.random_bool(WRITER_RATIO) {
        true => (&leaf.parent(), Mode::Write),
        false => (leaf, Mode::Read),
    };
    let token = worker.client.acquire(lock, mode).await?;
    let answered = Instant::now();
    let Some(token) = token else {
        recorder.refused("acquire", answered - due);
        return Ok(());
    };
    ensure!(worker.client.release(lock, token).await?, "the hold was gone");
    recorder.record(&[("acquire", answered - due), ("release", answered.elapsed())]);
    Ok(())
}
