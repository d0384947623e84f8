//! What the processes use of the machine.

use std::sync::Arc;
use std::time::Duration;

use holdfast_testkit::wait_out;
use parking_lot::Mutex;
use tokio::task::JoinSet;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
const KIB: u64 = 1_024;

/// Bytes of memory of a process; 0 when it is gone.
pub(crate) fn rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib * KIB)
}

/// The clock of all processors: how long they were busy, and how long in all, in ticks.
#[derive(Clone, Copy)]
pub(crate) struct CpuSample {
    busy: u64,
    total: u64,
}

impl CpuSample {
    /// As they are now.
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let first = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|tick| tick.parse().ok()).collect();
        let total = ticks.iter().sum();
        // The fourth is idle, the fifth waits for disks.
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self { busy: total - idle, total }
    }

    /// Which part of the time since then they were busy.
    pub(crate) fn busy_fraction_since(self) -> f64 {
        let now = Self::now();
        (now.busy - self.busy) as f64 / (now.total - self.total).max(1) as f64
    }
}

/// The most memory that each of some processes has while this value is there.
pub(crate) struct PeakMemory {
    pids: Vec<u32>,
    max: Arc<Mutex<Vec<u64>>>,
    _task: JoinSet<()>,
}

impl PeakMemory {
    /// Looks from now on.
    pub(crate) fn start(pids: Vec<u32>) -> Self {
        let max = Arc::new(Mutex::new(pids.iter().map(|pid| rss(*pid)).collect::<Vec<_>>()));
        let mut task = JoinSet::new();
        let (seen, watched) = (Arc::clone(&max), pids.clone());
        task.spawn(async move {
            loop {
                wait_out(POLL_INTERVAL).await;
                for (max, pid) in seen.lock().iter_mut().zip(&watched) {
                    *max = rss(*pid).max(*max);
                }
            }
        });
        Self { pids, max, _task: task }
    }

    /// The most of each so far.
    pub(crate) fn max(&self) -> Vec<u64> {
        let now = self.pids.iter().map(|pid| rss(*pid));
        self.max.lock().iter().zip(now).map(|(most, now)| now.max(*most)).collect()
    }
}
