//! Uncontended pairs: every client has locks of its own.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Worker;
use crate::clients::Mode;
use crate::load::Recorder;

pub(super) async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) -> Result<()> {
    let turn = worker.next_lock();
    let lock = &worker.locks[turn];
    let token = worker.client.acquire(lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
    let acquired = Instant::now();
    ensure!(worker.client.release(lock, token).await?, "the hold was gone");
    let released = Instant::now();
    recorder.record(&[("acquire", acquired - due), ("release", released - acquired), ("pair", released - due)]);
    Ok(())
}
