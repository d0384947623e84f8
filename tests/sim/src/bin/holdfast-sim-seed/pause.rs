//! A process that is paused and resumed: SIGSTOP and SIGCONT.
//!
//! Hosts of the simulation are runtimes of one thread whose tasks run in turn. A runtime runs a certain number of tasks
//! between two reads of its clock, which is where a step of the simulation ends. So tasks that do nothing, put before
//! all others, use up every step of the pause while the clock advances: timers and messages wait behind them. After the
//! last of these tasks everything happens at once, as in a process that is resumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

/// One step of the simulation.
const STEP: Duration = Duration::from_millis(1);
/// Tasks that a runtime runs between two reads of its clock, by default.
const TASKS_PER_STEP: u64 = 61;

/// Pauses all other tasks of this host for so many milliseconds. Returns false if one ran nevertheless.
///
/// Must be called in a local task of the host: those are outside of the queue that is filled here.
pub(crate) async fn this_process(millis: u64) -> bool {
    let (from, has_run) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let probe = tokio::spawn({
        let has_run = Arc::clone(&has_run);
        async move {
            sleep(STEP).await;
            has_run.store(true, Ordering::Relaxed);
        }
    });
    // The probe must be waiting before the pause begins.
    tokio::task::yield_now().await;
    for _ in 0..millis * TASKS_PER_STEP {
        tokio::spawn(std::future::ready(()));
    }
    for _ in 1..millis {
        advance(STEP).await;
    }
    let was_quiet = !has_run.load(Ordering::Relaxed);
    probe.abort();
    was_quiet && from.elapsed() >= Duration::from_millis(millis - 1)
}
