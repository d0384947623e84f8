//! The tasks of one owner.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use metrics::counter;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::panics::catch_panic_async;

/// Delay before the first restart of a failed task.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Longest delay.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A task that ran this long without failing restarts with the first delay again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(60);
/// How long after the end of a task its set may be cancelled for the end to count as part of the shutdown. A task's
/// resources end in no particular order, so the task may end just before its set is cancelled.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Delays between restarts of a repeatedly failing task: 1 s, doubling to 60 s, without end.
pub fn restart_delays() -> impl Iterator<Item = Duration> + Send {
    backoff()
}

fn backoff() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new().with_min_delay(INITIAL_BACKOFF).with_max_delay(MAX_BACKOFF).with_factor(2.0);
    pauses.without_max_times().build()
}

/// The parents of the sets of the process itself: of those that calls need, and of the others.
static PROCESS: LazyLock<TaskSet> = LazyLock::new(|| TaskSet::new(TaskOwner::process()));
static BACKGROUND: LazyLock<TaskSet> = LazyLock::new(|| TaskSet::new(TaskOwner::process()));

/// Returns what is wrong now with the tasks of the process itself that calls need, see [`TaskSet::of_process`].
pub fn failing_process_task() -> Option<String> {
    PROCESS.unhealthy_reason()
}

/// Returns what is wrong now with the tasks of the process itself that no call needs, see [`TaskSet::in_background`].
pub fn failing_background_task() -> Option<String> {
    BACKGROUND.unhealthy_reason()
}

/// The owner of tasks, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskOwner {
    /// The shard; empty for tasks of no shard.
    pub shard: String,
    /// The replica; 0 for tasks of no replica.
    pub replica: u64,
}

impl TaskOwner {
    /// The process as a whole.
    pub fn process() -> Self {
        Self { shard: String::new(), replica: 0 }
    }

    /// One replica of a shard.
    pub fn replica(shard: &str, replica: u64) -> Self {
        Self { shard: shard.to_owned(), replica }
    }
}

/// A failed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    /// The task's name.
    pub task: &'static str,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} has failed: {}", self.task, self.reason)
    }
}

/// Tasks that end with the set: when it is dropped or [`TaskSet::cancel`] is called, they are dropped at their next
/// await point.
#[derive(Debug)]
pub struct TaskSet {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    owner: TaskOwner,
    cancellation: CancellationToken,
    tracker: TaskTracker,
    /// The first essential task that failed.
    failed: watch::Sender<Option<TaskFailure>>,
    /// Number of failures of restarted tasks.
    failures: watch::Sender<u64>,
    /// Failed tasks, including those of parent and children: until their restart, or the end of their set.
    down: Arc<DownTasks>,
    /// Tracks the tasks of the parent and its children, if there is a parent.
    parent_tracker: Option<TaskTracker>,
}

/// By the order of their failures: several sets may have a task of the same name.
type DownTasks = Mutex<BTreeMap<u64, TaskFailure>>;

impl Drop for TaskSet {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl TaskSet {
    /// Creates an empty set.
    pub fn new(owner: TaskOwner) -> Self {
        Self::with(owner, CancellationToken::new(), Arc::default(), None)
    }

    /// Creates a set of tasks of the process itself that calls need, such as those of a listener: of no part that could
    /// say itself that it is not ready. [`failing_process_task`] does.
    pub fn of_process() -> Self {
        PROCESS.child()
    }

    /// Creates a set of restarted tasks of the process itself without which calls go on, such as the upkeep of metrics:
    /// the process is ready while they fail. [`failing_background_task`] says so.
    pub fn in_background() -> Self {
        BACKGROUND.child()
    }

    /// Creates a set of the same owner. It ends with this one at the latest, and its failures count for this one too.
    pub fn child(&self) -> Self {
        let Shared { owner, cancellation, tracker, down, .. } = &*self.shared;
        Self::with(owner.clone(), cancellation.child_token(), Arc::clone(down), Some(tracker.clone()))
    }

    fn with(
        owner: TaskOwner,
        cancellation: CancellationToken,
        down: Arc<DownTasks>,
        parent_tracker: Option<TaskTracker>,
    ) -> Self {
        let (tracker, failed, failures) = (TaskTracker::new(), watch::Sender::new(None), watch::Sender::new(0));
        Self { shared: Arc::new(Shared { owner, cancellation, tracker, failed, failures, down, parent_tracker }) }
    }

    /// Runs a task that the owner needs and that can't be restarted alone: when it ends or panics, [`TaskSet::failed`]
    /// reports it.
    pub fn spawn_essential(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.spawn(task, async move {
            if let Some(reason) = shared.run_until_failed(task, work).await {
                // The parent shows it as long as there is this set.
                let _down = shared.fail(task, reason);
                pending::<()>().await;
            }
        });
    }

    /// Runs a task that is restarted when it ends or panics: first after 1 s, then after twice as long each time, at
    /// most 60 s.
    pub fn spawn_restarting<F>(&self, task: &'static str, work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(task, Arc::clone(&self.shared).run_with_restarts(task, work, false));
    }

    /// Runs a task that may complete, and is restarted if it panics before.
    pub fn spawn_until_done<F>(&self, task: &'static str, work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(task, Arc::clone(&self.shared).run_with_restarts(task, work, true));
    }

    #[expect(clippy::disallowed_methods, reason = "the callers catch panics of the work, and count them")]
    fn spawn(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        // Registers the metric before the first failure, so that an increase is visible.
        counter!("holdfast_task_failures_total", "task" => task).increment(0);
        let closing = self.shared.cancellation.clone();
        let work = async move {
            let _ = closing.run_until_cancelled(work).await;
        };
        match &self.shared.parent_tracker {
            Some(parent) => drop(self.shared.tracker.spawn(parent.track_future(work))),
            None => drop(self.shared.tracker.spawn(work)),
        }
    }

    /// Subscribes to the failure of an essential task; the first one stays.
    pub fn failed(&self) -> watch::Receiver<Option<TaskFailure>> {
        self.shared.failed.subscribe()
    }

    /// Subscribes to the number of failures of restarted tasks.
    pub fn failures(&self) -> watch::Receiver<u64> {
        self.shared.failures.subscribe()
    }

    /// Returns what is wrong with the tasks now: an essential one has failed, or one waits for its restart.
    pub fn unhealthy_reason(&self) -> Option<String> {
        if let Some(failure) = self.shared.failed.borrow().as_ref() {
            return Some(failure.to_string());
        }
        let down = self.shared.down.lock();
        down.values().next().map(ToString::to_string)
    }

    /// Ends all tasks. No more can be added.
    pub fn cancel(&self) {
        self.shared.cancellation.cancel();
        self.shared.tracker.close();
    }

    /// Ends all tasks, and waits until all have ended.
    pub async fn shutdown(&self) {
        self.cancel();
        self.shared.tracker.wait().await;
    }
}

impl Shared {
    /// Returns why the work failed, or `None` if the set was cancelled.
    async fn run_until_failed(&self, task: &'static str, work: impl Future<Output = ()>) -> Option<String> {
        match catch_panic_async(task, work).await {
            Err(panicked) => Some(panicked.to_string()),
            Ok(()) => {
                let ends = timeout(SHUTDOWN_GRACE, self.cancellation.cancelled()).await;
                ends.is_err().then(|| "it ended, which it should not".to_owned())
            }
        }
    }

    async fn run_with_restarts<F: Future<Output = ()> + Send>(
        self: Arc<Self>,
        task: &'static str,
        mut work: impl FnMut() -> F + Send,
        may_end: bool,
    ) {
        let mut next = backoff();
        loop {
            let began = Instant::now();
            let failed = match may_end {
                true => catch_panic_async(task, work()).await.err().map(|panicked| panicked.to_string()),
                false => self.run_until_failed(task, work()).await,
            };
            let Some(reason) = failed else { return };
            if began.elapsed() >= BACKOFF_RESET_AFTER {
                next = backoff();
            }
            let _down = DownGuard::record(&self.down, self.count(task, reason));
            self.failures.send_modify(|count| *count += 1);
            sleep(next.next().unwrap_or(MAX_BACKOFF)).await;
        }
    }

    fn fail(&self, task: &'static str, reason: String) -> DownGuard<'_> {
        let failure = self.count(task, reason);
        let down = DownGuard::record(&self.down, failure.clone());
        self.failed.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(failure);
            is_first
        });
        down
    }

    fn count(&self, task: &'static str, reason: String) -> TaskFailure {
        report_failure(&self.owner.shard, self.owner.replica, task, &reason);
        TaskFailure { task, reason }
    }
}

pub(crate) fn report_failure(shard: &str, replica: u64, task: &'static str, reason: &str) {
    tracing::error!(shard, replica, task, reason, "a task has failed");
    counter!("holdfast_task_failures_total", "task" => task).increment(1);
}

/// Marks a task as failed.
struct DownGuard<'a> {
    down: &'a DownTasks,
    number: u64,
}

impl<'a> DownGuard<'a> {
    fn record(down: &'a DownTasks, failure: TaskFailure) -> Self {
        let mut failures = down.lock();
        let number = failures.last_key_value().map_or(0, |(last, _)| last + 1);
        failures.insert(number, failure);
        Self { down, number }
    }
}

impl Drop for DownGuard<'_> {
    fn drop(&mut self) {
        self.down.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
