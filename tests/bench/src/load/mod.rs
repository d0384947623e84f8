//! Load: workers that take steps, either each as fast as it is answered (closed loop) or at times that were fixed
//! beforehand (open loop).

mod arrivals;
mod recorder;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::join_all;
use tokio::task::JoinSet;

use crate::measure::{Sample, Storage, Usage};
use crate::systems::System;
use crate::workloads::Worker;

pub use recorder::{Recorded, Recorder};

/// After an error a worker rests, so that a system that is down is not hammered.
const ERROR_BACKOFF: Duration = Duration::from_millis(5);
/// For how long operations that were due are still served after the end of the window.
const GRACE: Duration = Duration::from_secs(5);
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// When operations begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadShape {
    /// Each worker begins the next when the one before is answered.
    Closed,
    /// So many a second in all, at even distances, whatever the answers. Latency counts from the time at which an
    /// operation was due, not from the time at which a worker was free for it.
    Open(f64),
}

/// For how long is measured.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Load that is not counted, before.
    pub warm_up: Duration,
    /// What is counted.
    pub measured: Duration,
}

/// What came of a load.
pub struct Outcome {
    /// Latencies and counts.
    pub recorded: Recorded,
    /// Length of the window.
    pub seconds: f64,
    /// Operations that ended in the window.
    pub operations: u64,
    /// What the servers used in it.
    pub usage: Usage,
    /// What their storage did in it.
    pub storage: Storage,
}

/// Runs the workers, which must be prepared, and leaves the system as it was before them.
///
/// # Errors
/// When a server process is gone. Errors of operations are counted instead.
pub async fn run(system: &System, workers: Vec<Worker>, pace: LoadShape, window: Window) -> Result<Outcome> {
    let recorder = Arc::new(Recorder::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    let arrivals = match pace {
        LoadShape::Closed => None,
        LoadShape::Open(rate) => Some(arrivals::start(rate, window.warm_up + window.measured, Arc::clone(&stop))?),
    };
    for worker in workers {
        let (recorder, stop) = (Arc::clone(&recorder), Arc::clone(&stop));
        match arrivals.clone() {
            None => tasks.spawn(closed_loop(worker, recorder, stop)),
            Some(arrivals) => tasks.spawn(open_loop(worker, recorder, arrivals)),
        };
    }
    let pids = system.pids();
    tokio::time::sleep_until((Instant::now() + window.warm_up).into()).await;
    let before = Sample::take(&pids)?;
    recorder.clear();
    let begun = Instant::now();
    let storage_before = system.storage().await?;
    tokio::time::sleep_until((begun + window.measured).into()).await;
    let operations = recorder.operations();
    let seconds = begun.elapsed().as_secs_f64();
    let usage = Sample::take(&pids)?.since(&before);
    let storage = difference(system.storage().await?, storage_before);
    stop.store(true, Ordering::Relaxed);
    // In an open loop each that is cut off says so itself.
    if !finish(tasks).await && pace == LoadShape::Closed {
        recorder.record_error("operations were cut off: they were not answered");
    }
    // An operation for which no client was free waits since it was due.
    while let Some(due) = arrivals.as_ref().and_then(|arrivals| arrivals.try_recv().ok()) {
        recorder.unserved(due.elapsed());
    }
    Ok(Outcome { recorded: recorder.take(), seconds, operations, usage, storage })
}

async fn closed_loop(mut worker: Worker, recorder: Arc<Recorder>, stop: Arc<AtomicBool>) -> Worker {
    while !stop.load(Ordering::Relaxed) {
        step(&mut worker, Instant::now(), &recorder).await;
    }
    worker
}

async fn open_loop(mut worker: Worker, recorder: Arc<Recorder>, arrivals: async_channel::Receiver<Instant>) -> Worker {
    while let Ok(due) = arrivals.recv().await {
        let unanswered = PendingOperation { due, recorder: &recorder };
        step(&mut worker, due, &recorder).await;
        std::mem::forget(unanswered);
    }
    worker
}

/// An operation of an open loop. Dropped before its end, it is charged for the time that it has waited.
struct PendingOperation<'a> {
    due: Instant,
    recorder: &'a Recorder,
}

impl Drop for PendingOperation<'_> {
    fn drop(&mut self) {
        self.recorder.unserved(self.due.elapsed());
    }
}

async fn step(worker: &mut Worker, due: Instant, recorder: &Recorder) {
    if let Err(error) = worker.step(due, recorder).await {
        recorder.record_error(&format!("{error:#}"));
        tokio::time::sleep_until((Instant::now() + ERROR_BACKOFF).into()).await;
    }
}

/// Waits for the last operations and gives back what the workers hold. Whether all of them were answered.
async fn finish(mut tasks: JoinSet<Worker>) -> bool {
    let mut workers = Vec::new();
    let gather = async {
        while let Some(ended) = tasks.join_next().await {
            workers.extend(ended);
        }
    };
    let is_whole = tokio::time::timeout(GRACE, gather).await.is_ok();
    tasks.shutdown().await;
    // Leftovers do no harm: every measurement has locks of its own.
    let _ = tokio::time::timeout(CLEANUP_TIMEOUT, join_all(workers.iter_mut().map(Worker::finish))).await;
    is_whole
}

fn difference(now: Storage, before: Storage) -> Storage {
    let less = |now: Option<f64>, before: Option<f64>| now.zip(before).map(|(now, before)| now - before);
    Storage { syncs: less(now.syncs, before.syncs), bytes: less(now.bytes, before.bytes) }
}
