//! A polite account beside the quiet one: it takes and gives up locks of its own, and keeps the processors as busy as the
//! hostile one does. What the quiet account sees beside it says what a busy machine costs, and what isolation does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::attacks::pair;
use super::door::Door;
use super::machine::Processors;
use super::pause::wait_for;

const TICK: Duration = Duration::from_millis(10);
/// How often the rate is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pairs that are under way at most: one that is not answered is not followed by others without end.
const AT_ONCE: usize = 64;
/// More than this is not aimed at: calls would pile up.
const BUSIEST: f64 = 0.95;

/// The load; it ends when this value is dropped.
pub(crate) struct Polite {
    _tasks: JoinSet<()>,
}

impl Polite {
    /// Makes `calls` a second, and more until the processors are so busy.
    pub(crate) fn start(doors: Vec<Door>, namespace: String, calls: f64, busy: f64) -> Self {
        // In thousandths of a pair a second.
        let rate = Arc::new(AtomicU64::new((calls.max(2.0) * 500.0) as u64));
        let mut tasks = JoinSet::new();
        tasks.spawn(control(Arc::clone(&rate), busy.min(BUSIEST)));
        tasks.spawn(load(doors, namespace, rate));
        Self { _tasks: tasks }
    }
}

async fn control(rate: Arc<AtomicU64>, busy: f64) {
    let least = rate.load(Ordering::Relaxed);
    loop {
        let before = Processors::now();
        wait_for(LOOK_EVERY).await;
        let factor = (busy / before.busy_since().max(0.01)).clamp(0.5, 2.0);
        let now = rate.load(Ordering::Relaxed) as f64 * factor;
        rate.store((now as u64).clamp(least, 100_000_000), Ordering::Relaxed);
    }
}

async fn load(doors: Vec<Door>, namespace: String, rate: Arc<AtomicU64>) {
    let (mut running, mut owed, mut number) = (JoinSet::new(), 0.0, 0);
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        owed += rate.load(Ordering::Relaxed) as f64 / 1_000.0 * TICK.as_secs_f64();
        while running.try_join_next().is_some() {}
        while owed >= 1.0 && running.len() < AT_ONCE {
            let (door, namespace) = (doors[number % doors.len()].clone(), namespace.clone());
            let owner = format!("polite-{}", number % (AT_ONCE * 2));
            running.spawn(async move { pair(&door, &namespace, &owner).await });
            (owed, number) = (owed - 1.0, number + 1);
        }
        owed = owed.min(AT_ONCE as f64);
    }
}
