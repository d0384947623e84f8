//! Work that is done again and again, by one of many processes.

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

/// From when to when a period is counted.
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
    /// From the end of one piece of work to the begin of the next.
    FixedDelay,
    /// From begin to begin. What is late is made up for, one piece after the other.
    FixedRate,
}

/// When to work.
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
    /// From when to when the period is counted.
    pub strategy: Strategy,
    /// From the begin of the ownership to the first piece of work.
    pub initial_delay: Duration,
    /// From one piece of work to the next; at least 1 ms.
    pub period: Duration,
}

impl ScheduleConfig {
    /// With a pause of that length between the end of one piece of work and the begin of the next.
    pub fn delay(initial_delay: Duration, period: Duration) -> Self {
        Self { strategy: Strategy::FixedDelay, initial_delay, period }
    }

    /// With a begin every `period`.
    pub fn rate(initial_delay: Duration, period: Duration) -> Self {
        Self { strategy: Strategy::FixedRate, initial_delay, period }
    }
}

type Work = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

/// Works while it owns a mutex, and only then: when the ownership ends, the piece of work under way is dropped at its
/// next `await`, and the mutex is not let go before that has happened (nor kept longer than its time to live). A piece
/// of work that panics is logged, and the next one comes as usual.
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
    /// Does that work in a process that owns that mutex.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] for a name that is blank or too long, and for a period below 1 ms.
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

    /// Begins to contend, and to work when that succeeds.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it is stopped, [`ContentionError::NoRuntime`] outside of a runtime.
    pub fn start(&self) -> Result<(), ContentionError> {
        self.service.start()
    }

    /// Ends the work and gives the mutex back.
    ///
    /// # Errors
    /// [`ContentionError::WrongStatus`] unless it runs; [`ContentionError::Store`] when the release was not answered.
    pub async fn stop(&self) -> Result<(), ContentionError> {
        self.service.stop().await
    }

    /// Whether it was started and not stopped since.
    pub fn is_running(&self) -> bool {
        self.service.is_running()
    }

    /// Whether this process is the one that works.
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
            // Calls come on a thread that may be blocked. An error says that it was aborted, which is what is wanted.
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

/// The clock is asked before each piece: nobody may have been told yet that the ownership is over.
async fn run_once(work: &Arc<Work>, service: &Weak<dyn MutexContendService>) {
    if !service.upgrade().is_some_and(|service| service.is_owner()) {
        return;
    }
    let piece = std::panic::AssertUnwindSafe(async { work().await });
    if piece.catch_unwind().await.is_err() {
        tracing::error!("a piece of scheduled work panicked");
    }
}
