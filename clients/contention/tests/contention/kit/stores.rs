//! Stores between a contender and a real one: such as answer late or not at all, and one that notes what it is asked.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use holdfast_client::{Error, Result};
use holdfast_contention::{AcquireMutex, Acquisition, Holding, MutexStore, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The real one does what it is asked for at once, and its answers are kept back until the gate is opened.
pub(crate) struct Gated {
    inner: Arc<dyn MutexStore>,
    is_open: watch::Sender<bool>,
}

impl Gated {
    pub(crate) fn new(inner: &Arc<dyn MutexStore>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), is_open: watch::Sender::new(false) })
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(crate) fn close(&self) {
        self.is_open.send_replace(false);
    }
}

impl MutexStore for Gated {
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>> {
        async {
            let answer = self.inner.acquire(request).await;
            self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
            answer
        }
        .boxed()
    }

    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.inner.release(mutex, contender_id)
    }

    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>> {
        self.inner.holding(mutex)
    }

    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>> {
        self.inner.changes(mutex)
    }
}

/// How calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// They do not.
    None,
    /// At once.
    Immediate,
    /// When nobody has answered for a while.
    Silent,
}

/// The real one cannot be reached while it is told so.
pub(crate) struct Failing {
    inner: Arc<dyn MutexStore>,
    failure: watch::Sender<Failure>,
}

impl Failing {
    /// Longer than an ownership lasts once its renewal is due.
    const SILENCE: Duration = Duration::from_secs(5);

    pub(crate) fn new(inner: &Arc<dyn MutexStore>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), failure: watch::Sender::new(Failure::None) })
    }

    pub(crate) fn set(&self, failure: Failure) {
        self.failure.send_replace(failure);
    }

    async fn fail_if_set(&self) -> Result<()> {
        let failure = *self.failure.borrow();
        match failure {
            Failure::None => return Ok(()),
            Failure::Immediate => {}
            Failure::Silent => wait_for_nothing(Self::SILENCE).await,
        }
        Err(Error::Unreachable(format!("{failure:?}")))
    }
}

async fn wait_for_nothing(duration: Duration) {
    tokio::time::sleep(duration).await;
}

impl MutexStore for Failing {
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>> {
        async {
            self.fail_if_set().await?;
            self.inner.acquire(request).await
        }
        .boxed()
    }

    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        async {
            self.fail_if_set().await?;
            self.inner.release(mutex, contender_id).await
        }
        .boxed()
    }

    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>> {
        async {
            self.fail_if_set().await?;
            self.inner.holding(mutex).await
        }
        .boxed()
    }

    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>> {
        self.inner.changes(mutex)
    }
}

/// A call that was made, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    pub(crate) contender_id: String,
    pub(crate) at: Timestamp,
    /// Until when the owner that the contender was told of keeps everybody else away; none when the contender itself is
    /// the owner.
    pub(crate) taken_until: Option<Timestamp>,
}

/// Notes when it is asked for the mutex.
pub(crate) struct Recording {
    inner: Arc<dyn MutexStore>,
    calls: Mutex<Vec<RecordedCall>>,
}

impl Recording {
    pub(crate) fn new(inner: &Arc<dyn MutexStore>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), calls: Mutex::default() })
    }

    /// The calls of one contender, in order.
    pub(crate) fn calls_of(&self, who: &str) -> Vec<RecordedCall> {
        self.calls.lock().iter().filter(|asked| asked.contender_id == who).cloned().collect()
    }
}

impl MutexStore for Recording {
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>> {
        async {
            let at = Timestamp::now();
            let answer = self.inner.acquire(request).await?;
            let taken_until = match &answer {
                Acquisition::NotGranted { holding: Some(holding) } => {
                    let transition = holding.transition_left.unwrap_or(request.transition);
                    Some(Timestamp::now() + holding.ttl_left.map_or(transition, |left| left + request.transition))
                }
                _ => None,
            };
            self.calls.lock().push(RecordedCall { contender_id: request.contender_id.clone(), at, taken_until });
            Ok(answer)
        }
        .boxed()
    }

    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.inner.release(mutex, contender_id)
    }

    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>> {
        self.inner.holding(mutex)
    }

    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>> {
        self.inner.changes(mutex)
    }
}
