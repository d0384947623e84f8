//! A process that is stopped and goes on later: SIGSTOP and SIGCONT.
//!
//! Hosts of the simulation are runtimes of one thread whose tasks run in turn. A runtime runs a certain number of tasks
//! between two looks at its clock, which is where a step of the simulation ends. So tasks that do nothing, put in front
//! of all others, take up every step of the pause, while its clock goes on: what falls due meanwhile, and whatever comes
//! in, waits behind them. When they are used up everything happens at once, as in a process that is let go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};

/// One step of the simulation.
const STEP: Duration = Duration::from_millis(1);
/// Tasks that a runtime runs between two looks at its clock, unless it is built otherwise.
const TASKS_PER_STEP: u64 = 61;

/// Stops everything else in this host for so many milliseconds. False when something ran all the same.
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
    // The probe must be waiting before it can be kept from going on.
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
