//! The tasks of one owner.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use metrics::counter;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::caught::catch_async;

/// The first pause before something that failed is started again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// What ran for so long without failing begins with the first pause again.
const IS_SOUND: Duration = Duration::from_secs(60);
/// What a task works for goes in no particular order: one that ends may do so just before its set is ended.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

/// Pauses between starts of something that fails again and again: 1 s, doubling to 60 s, without end.
pub fn restarts() -> impl Iterator<Item = Duration> + Send {
    pauses()
}

fn pauses() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new().with_min_delay(FIRST_PAUSE).with_max_delay(LONGEST_PAUSE).with_factor(2.0);
    pauses.without_max_times().build()
}

/// Whose tasks they are, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The shard; empty for what belongs to no shard.
    pub shard: String,
    /// The replica; 0 for what belongs to none.
    pub replica: u64,
}

impl Owner {
    /// The process as a whole.
    pub fn process() -> Self {
        Self { shard: String::new(), replica: 0 }
    }

    /// One replica of a shard.
    pub fn replica(shard: &str, replica: u64) -> Self {
        Self { shard: shard.to_owned(), replica }
    }
}

/// A task that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    /// Its name.
    pub task: &'static str,
    /// Why.
    pub reason: String,
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} has failed: {}", self.task, self.reason)
    }
}

/// Tasks that end with the set: when it is dropped or [`TaskSet::end`] is called, they are dropped at the next point at
/// which they wait.
#[derive(Debug)]
pub struct TaskSet {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    owner: Owner,
    closing: CancellationToken,
    running: TaskTracker,
    /// The first essential task that failed.
    failed: watch::Sender<Option<TaskFailure>>,
    /// How often a task that is started again has failed.
    failures: watch::Sender<u64>,
    /// Tasks that have failed and wait for their next start; those of parent and children together.
    down: Arc<Down>,
    /// What runs in the parent and its children, when there is a parent.
    of_parent: Option<TaskTracker>,
}

type Down = Mutex<BTreeMap<&'static str, String>>;

impl Drop for TaskSet {
    fn drop(&mut self) {
        self.end();
    }
}

impl TaskSet {
    /// A set without tasks.
    pub fn new(owner: Owner) -> Self {
        Self::with(owner, CancellationToken::new(), Arc::default(), None)
    }

    /// A set of the same owner that ends with this one at the latest, and whose trouble is this one's too.
    pub fn child(&self) -> Self {
        let Shared { owner, closing, running, down, .. } = &*self.shared;
        Self::with(owner.clone(), closing.child_token(), Arc::clone(down), Some(running.clone()))
    }

    fn with(owner: Owner, closing: CancellationToken, down: Arc<Down>, of_parent: Option<TaskTracker>) -> Self {
        let (running, failed, failures) = (TaskTracker::new(), watch::Sender::new(None), watch::Sender::new(0));
        Self { shared: Arc::new(Shared { owner, closing, running, failed, failures, down, of_parent }) }
    }

    /// Runs a task that the owner can't do without, and that can't be started again alone: when it ends or panics,
    /// [`TaskSet::failed`] tells.
    pub fn run(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.spawn(task, async move {
            if let Some(reason) = shared.until_failed(task, work).await {
                shared.fail(task, reason);
            }
        });
    }

    /// Says that something which the owner can't do without has failed, as if it were an essential task.
    pub fn fail(&self, task: &'static str, reason: String) {
        self.shared.fail(task, reason);
    }

    /// Runs a task that is started again when it ends or panics: after 1 s at first, then after twice as long each time,
    /// at most 60 s.
    pub fn keep<F>(&self, task: &'static str, work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(task, Arc::clone(&self.shared).again_and_again(task, work, false));
    }

    /// Runs a task that may come to its end, and is started again when it panics before.
    pub fn finish<F>(&self, task: &'static str, work: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(task, Arc::clone(&self.shared).again_and_again(task, work, true));
    }

    fn spawn(&self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        // The figure is there before the first failure, so that an increase is seen.
        counter!("holdfast_task_failures_total", "task" => task).increment(0);
        let closing = self.shared.closing.clone();
        let work = async move {
            let _ = closing.run_until_cancelled(work).await;
        };
        match &self.shared.of_parent {
            Some(parent) => drop(self.shared.running.spawn(parent.track_future(work))),
            None => drop(self.shared.running.spawn(work)),
        }
    }

    /// Follows whether an essential task has failed; the first one stays.
    pub fn failed(&self) -> watch::Receiver<Option<TaskFailure>> {
        self.shared.failed.subscribe()
    }

    /// Follows how often tasks that are started again have failed.
    pub fn failures(&self) -> watch::Receiver<u64> {
        self.shared.failures.subscribe()
    }

    /// What is wrong with the tasks now: an essential one has failed, or one waits for its next start.
    pub fn trouble(&self) -> Option<String> {
        if let Some(failure) = self.shared.failed.borrow().as_ref() {
            return Some(failure.to_string());
        }
        let down = self.shared.down.lock();
        let (task, reason) = down.iter().next()?;
        Some(TaskFailure { task, reason: reason.clone() }.to_string())
    }

    /// Ends all tasks. None can be added any more.
    pub fn end(&self) {
        self.shared.closing.cancel();
        self.shared.running.close();
    }

    /// Ends all tasks, and waits until nothing of them is left.
    pub async fn ended(&self) {
        self.end();
        self.shared.running.wait().await;
    }
}

impl Shared {
    /// Why a piece of work failed; nothing when the set was ended.
    async fn until_failed(&self, task: &'static str, work: impl Future<Output = ()>) -> Option<String> {
        match catch_async(task, work).await {
            Err(panicked) => Some(panicked.to_string()),
            Ok(()) => {
                let ends = timeout(LAST_MOMENTS, self.closing.cancelled()).await;
                ends.is_err().then(|| "it ended, which it should not".to_owned())
            }
        }
    }

    async fn again_and_again<F: Future<Output = ()> + Send>(
        self: Arc<Self>,
        task: &'static str,
        mut work: impl FnMut() -> F + Send,
        may_end: bool,
    ) {
        let mut next = pauses();
        loop {
            let began = Instant::now();
            let failed = match may_end {
                true => catch_async(task, work()).await.err().map(|panicked| panicked.to_string()),
                false => self.until_failed(task, work()).await,
            };
            let Some(reason) = failed else { return };
            if began.elapsed() >= IS_SOUND {
                next = pauses();
            }
            let _down = IsDown::note(&self.down, task, reason.clone());
            self.count(task, reason);
            self.failures.send_modify(|count| *count += 1);
            sleep(next.next().unwrap_or(LONGEST_PAUSE)).await;
        }
    }

    fn fail(&self, task: &'static str, reason: String) {
        let failure = self.count(task, reason);
        self.failed.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(failure);
            is_first
        });
    }

    fn count(&self, task: &'static str, reason: String) -> TaskFailure {
        count(&self.owner.shard, self.owner.replica, task, &reason);
        TaskFailure { task, reason }
    }
}

pub(crate) fn count(shard: &str, replica: u64, task: &'static str, reason: &str) {
    tracing::error!(shard, replica, task, reason, "a task has failed");
    counter!("holdfast_task_failures_total", "task" => task).increment(1);
}

/// That a task waits for its next start.
struct IsDown<'a> {
    down: &'a Down,
    task: &'static str,
}

impl<'a> IsDown<'a> {
    fn note(down: &'a Down, task: &'static str, reason: String) -> Self {
        down.lock().insert(task, reason);
        Self { down, task }
    }
}

impl Drop for IsDown<'_> {
    fn drop(&mut self) {
        self.down.lock().remove(self.task);
    }
}

#[cfg(test)]
mod tests;
