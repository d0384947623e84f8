//! Repeated work, done by one of many processes.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::contender::MutexContender;
use crate::contender_id::ContenderIdGenerator;
use crate::error::ContentionError;
use crate::service::{MutexContendService, MutexContendServiceFactory};
use crate::state::MutexState;

/// How a period is measured.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ScheduleConfig, Strategy};
///
/// let config = ScheduleConfig::rate(Duration::ZERO, Duration::from_secs(60));
/// assert_eq!(config.strategy, Strategy::FixedRate);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// From the end of one piece of work to the start of the next.
    FixedDelay,
    /// From start to start. Late pieces are made up for, one after the other.
    FixedRate,
}

/// The schedule of the work.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ScheduleConfig, Strategy};
///
/// let config = ScheduleConfig::delay(Duration::ZERO, Duration::from_secs(1));
/// assert_eq!(config.strategy, Strategy::FixedDelay);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// How the period is measured.
    pub strategy: Strategy,
    /// From the start of the ownership to the first piece of work.
    pub initial_delay: Duration,
    /// From one piece of work to the next; at least 1 ms.
    pub period: Duration,
}

impl ScheduleConfig {
    /// Creates a schedule with a pause of `period` between the end of one piece of work and the start of the next.
    pub fn delay(initial_delay: Duration, period: Duration) -> Self {
        Self { strategy: Strategy::FixedDelay, initial_delay, period }
    }

    /// Creates a schedule with a start every `period`.
    pub fn rate(initial_delay: Duration, period: Duration) -> Self {
        Self { strategy: Strategy::FixedRate, initial_delay, period }
    }
}

type Work = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

/// Works while it owns a mutex, and only then. When the ownership ends, the current piece of work is dropped at its
/// next `await`. The mutex is released only after that, though not later than its time to live. A panic in a piece of
/// work is logged, and the next one runs as usual.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, ContentionFactory, ScheduleConfig, Scheduler};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_contention::ContentionError> {
/// let factory = ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?;
/// let (sender, mut done) = tokio::sync::mpsc::channel(1);
/// let config = ScheduleConfig::delay(Duration::ZERO, Duration::from_millis(10));
/// let scheduler = Scheduler::new(&factory, "clean-up", config, move || {
///     let sender = sender.clone();
///     async move { sender.send(()).await.expect("somebody listens") }
/// })?;
/// scheduler.start()?;
/// done.recv().await;
/// scheduler.stop().await
/// # }
/// ```
pub struct Scheduler {
    service: Arc<dyn MutexContendService>,
}

impl Scheduler {
    /// Creates a scheduler that does this work in the process that owns the mutex.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] for a blank or too long name, and for a period below 1 ms.
    pub fn new<F>(
        factory: &dyn MutexContendServiceFactory,
        mutex: impl Into<String>,
        config: ScheduleConfig,
        work: impl Fn() -> F + Send + Sync + 'static,
    ) -> Result<Self, ContentionError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if config.period < Duration::from_millis(1) {
            return Err(ContentionError::Invalid { what: "the period", why: "1 ms is the shortest".to_owned() });
        }
        let worker = Arc::new(Worker {
            mutex: mutex.into(),
            contender_id: ContenderIdGenerator::HOST.generate(),
            config,
            work: Arc::new(move || work().boxed()),
            service: OnceLock::new(),
            running: Mutex::new(None),
        });
        let service = factory.create_contend_service(Arc::clone(&worker) as Arc<dyn MutexContender>)?;
        worker.service.get_or_init(|| Arc::downgrade(&service));
        Ok(Self { service })
    }

    /// Starts to contend, and to work as owner.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it is stopped, [`ContentionError::NoRuntime`] outside of a runtime.
    pub fn start(&self) -> Result<(), ContentionError> {
        self.service.start()
    }

    /// Ends the work and releases the mutex.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it runs; [`ContentionError::Store`] when the release was not answered.
    pub async fn stop(&self) -> Result<(), ContentionError> {
        self.service.stop().await
    }

    /// Returns true if it was started and not stopped since.
    pub fn is_running(&self) -> bool {
        self.service.is_running()
    }

    /// Returns true if this process is the one that works.
    pub fn is_owner(&self) -> bool {
        self.service.is_owner()
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Scheduler");
        shown.field("mutex", &self.service.mutex()).field("status", &self.service.status()).finish_non_exhaustive()
    }
}

struct Worker {
    mutex: String,
    contender_id: String,
    config: ScheduleConfig,
    work: Arc<Work>,
    service: OnceLock<Weak<dyn MutexContendService>>,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl MutexContender for Worker {
    fn mutex(&self) -> &str {
        &self.mutex
    }

    fn contender_id(&self) -> &str {
        &self.contender_id
    }

    fn on_acquired(&self, _state: &MutexState) {
        let Some(service) = self.service.get() else { return };
        let working = run_schedule(self.config, Arc::clone(&self.work), Weak::clone(service));
        let before = self.running.lock().replace(Handle::current().spawn(working));
        debug_assert!(before.is_none(), "each acquisition but the first follows a release");
    }

    fn on_released(&self, _state: &MutexState) {
        if let Some(running) = self.running.lock().take() {
            running.abort();
            // Calls run on a thread that may block. An error means that the work was aborted, as intended.
            let _ = Handle::current().block_on(running);
        }
    }
}

async fn run_schedule(config: ScheduleConfig, work: Arc<Work>, service: Weak<dyn MutexContendService>) {
    let first = Instant::now() + config.initial_delay;
    match config.strategy {
        Strategy::FixedDelay => {
            tokio::time::sleep_until(first).await;
            loop {
                run_once(&work, &service).await;
                tokio::time::sleep(config.period).await;
            }
        }
        Strategy::FixedRate => {
            let mut ticks = tokio::time::interval_at(first, config.period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                ticks.tick().await;
                run_once(&work, &service).await;
            }
        }
    }
}

/// Checks the clock before each piece: the end of the ownership may not have been reported yet.
async fn run_once(work: &Arc<Work>, service: &Weak<dyn MutexContendService>) {
    if !service.upgrade().is_some_and(|service| service.is_owner()) {
        return;
    }
    let piece = std::panic::AssertUnwindSafe(async { work().await });
    if piece.catch_unwind().await.is_err() {
        tracing::error!("a piece of scheduled work panicked");
    }
}
