//! A polite account beside the quiet one: it takes and gives up locks of its own, and keeps the processors as busy as the
//! hostile one does. What the quiet account sees beside it says what a busy machine costs, and what isolation does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_testkit::wait_out;
use tokio::task::JoinSet;

use super::attacks::acquire_and_release;
use super::grpc_client::GrpcClient;
use crate::resource_usage::CpuSample;

const TICK: Duration = Duration::from_millis(10);
/// How often the rate is measured.
const CONTROL_INTERVAL: Duration = Duration::from_millis(500);
/// Pairs that are under way at most: one that is not answered is not followed by others without end.
const MAX_IN_FLIGHT_PAIRS: usize = 64;
/// More than this is not aimed at: calls would pile up.
const MAX_TARGET_BUSY: f64 = 0.95;

/// The load; it ends when this value is dropped.
pub(crate) struct ControlLoad {
    _tasks: JoinSet<()>,
}

impl ControlLoad {
    /// Makes `calls` a second, and more until the processors are so busy.
    pub(crate) fn start(frontends: Vec<GrpcClient>, namespace: String, calls: f64, busy: f64) -> Self {
        // In thousandths of a pair a second.
        let rate = Arc::new(AtomicU64::new((calls.max(2.0) * 500.0) as u64));
        let mut tasks = JoinSet::new();
        tasks.spawn(adjust_rate(Arc::clone(&rate), busy.min(MAX_TARGET_BUSY)));
        tasks.spawn(generate_load(frontends, namespace, rate));
        Self { _tasks: tasks }
    }
}

async fn adjust_rate(rate: Arc<AtomicU64>, busy: f64) {
    let least = rate.load(Ordering::Relaxed);
    loop {
        let before = CpuSample::now();
        wait_out(CONTROL_INTERVAL).await;
        let factor = (busy / before.busy_fraction_since().max(0.01)).clamp(0.5, 2.0);
        let now = rate.load(Ordering::Relaxed) as f64 * factor;
        rate.store((now as u64).clamp(least, 100_000_000), Ordering::Relaxed);
    }
}

async fn generate_load(frontends: Vec<GrpcClient>, namespace: String, rate: Arc<AtomicU64>) {
    let (mut running, mut owed, mut number) = (JoinSet::new(), 0.0, 0);
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
        owed += rate.load(Ordering::Relaxed) as f64 / 1_000.0 * TICK.as_secs_f64();
        while running.try_join_next().is_some() {}
        while owed >= 1.0 && running.len() < MAX_IN_FLIGHT_PAIRS {
            let (grpc, namespace) = (frontends[number % frontends.len()].clone(), namespace.clone());
            let owner = format!("polite-{}", number % (MAX_IN_FLIGHT_PAIRS * 2));
            running.spawn(async move { acquire_and_release(&grpc, &namespace, &owner).await });
            (owed, number) = (owed - 1.0, number + 1);
        }
        owed = owed.min(MAX_IN_FLIGHT_PAIRS as f64);
    }
}
