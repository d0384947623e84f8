//! What looking and contending have in common: the status, the owner as it is known here, and who is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_client::{Error, Result as StoreResult};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::contender::MutexRetriever;
use crate::error::ContentionError;
use crate::notifier::Notifier;
use crate::owner::MutexOwner;
use crate::service::Status;
use crate::state::MutexState;
use crate::timestamp::Timestamp;

/// How long the end of a service that owns nothing waits for its listener.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(1);

/// Shared between a service and the task of its present life.
pub(crate) struct Lifecycle {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) state: watch::Sender<MutexState>,
    /// How the last call to the store failed.
    pub(crate) last_error: watch::Sender<Option<Error>>,
    /// Until when the contender of this service is the owner, in ms of a [`Timestamp`]; 0 while it is not.
    owned_until_ms: AtomicU64,
    notifier: Arc<Notifier>,
    current: Mutex<Option<RunningTask>>,
}

struct RunningTask {
    stop: CancellationToken,
    ended: oneshot::Receiver<StoreResult<()>>,
}

/// One life of a service, as its task sees it.
pub(crate) struct TaskContext {
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) stop: CancellationToken,
    generation: u64,
}

impl Lifecycle {
    pub(crate) fn new(retriever: Arc<dyn MutexRetriever>) -> Arc<Self> {
        Arc::new(Self {
            status: watch::Sender::new(Status::Initial),
            state: watch::Sender::new(MutexState::NONE),
            last_error: watch::Sender::new(None),
            owned_until_ms: AtomicU64::new(0),
            notifier: Arc::new(Notifier::new(retriever)),
            current: Mutex::new(None),
        })
    }

    pub(crate) fn mutex(&self) -> &str {
        self.notifier.mutex()
    }

    /// Whether the contender of this service is the owner by now.
    pub(crate) fn is_owned(&self) -> bool {
        Timestamp::now().as_millis() < self.owned_until_ms.load(Ordering::Acquire)
    }

    /// Starts a task that looks or contends until it is told to stop.
    pub(crate) fn start<F>(self: &Arc<Self>, task: impl FnOnce(TaskContext) -> F) -> Result<(), ContentionError>
    where
        F: Future<Output = StoreResult<()>> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| ContentionError::NoRuntime)?;
        let mut current = self.current.lock();
        self.change_status("be started", Status::Initial, Status::Starting)?;
        self.state.send_replace(MutexState::NONE);
        self.last_error.send_replace(None);
        let stop = CancellationToken::new();
        let (sender, ended) = oneshot::channel();
        let present = TaskContext {
            lifecycle: Arc::clone(self),
            stop: stop.clone(),
            generation: self.notifier.start_generation(),
        };
        let task = task(present);
        let life = Arc::clone(self);
        runtime.spawn(async move {
            let outcome = task.await;
            // First, so that whoever hears of the end can start it again.
            life.status.send_replace(Status::Initial);
            // Nobody may be interested.
            let _ = sender.send(outcome);
        });
        *current = Some(RunningTask { stop, ended });
        self.status.send_replace(Status::Running);
        Ok(())
    }

    /// Tells the task to stop, and waits for it.
    pub(crate) fn stop(&self) -> BoxFuture<'static, Result<(), ContentionError>> {
        let mut current = self.current.lock();
        if let Err(error) = self.change_status("be stopped", Status::Running, Status::Stopping) {
            return async move { Err(error) }.boxed();
        }
        let current = current.take().expect("a service that runs has a task");
        current.stop.cancel();
        async move {
            // A runtime that shuts down takes the task away, and with it everything that it could still have done.
            current.ended.await.unwrap_or(Ok(())).map_err(ContentionError::from)
        }
        .boxed()
    }

    pub(crate) fn stopped(&self) -> BoxFuture<'static, ()> {
        let mut status = self.status.subscribe();
        async move {
            // An error says that the service is gone.
            let _ = status.wait_for(|status| *status == Status::Initial).await;
        }
        .boxed()
    }

    fn change_status(&self, what: &'static str, expected: Status, to: Status) -> Result<(), ContentionError> {
        let mut found = expected;
        let changed = self.status.send_if_modified(|status| {
            found = *status;
            if found == expected {
                *status = to;
            }
            found == expected
        });
        if changed {
            return Ok(());
        }
        Err(ContentionError::WrongStatus { mutex: self.mutex().to_owned(), what, expected, found })
    }
}

impl TaskContext {
    /// The owner is this one; `owned_until` tells until when, if it is the contender of this service.
    pub(crate) fn publish(&self, owner: MutexOwner, own_until: Option<Timestamp>) {
        let own_until_ms = own_until.map_or(0, Timestamp::as_millis);
        let is_changed = !self.lifecycle.state.borrow().after().is_owner(owner.owner_id());
        self.lifecycle.owned_until_ms.store(own_until_ms, Ordering::Release);
        self.lifecycle.state.send_modify(|state| *state = MutexState::new(state.after().clone(), owner.clone()));
        if is_changed {
            self.lifecycle.notifier.notify(self.generation, owner);
        }
    }

    /// There is nobody any more as far as this life is concerned, which is over. Completes when the listener has heard
    /// it; one that is slow is waited for up to the end of an ownership, or for a second without one.
    pub(crate) async fn end(&self) {
        let heard_until = self.owned_until().max(Timestamp::now() + LISTENER_TIMEOUT);
        self.lifecycle.owned_until_ms.store(0, Ordering::Release);
        self.lifecycle.state.send_modify(|state| *state = MutexState::new(state.after().clone(), MutexOwner::NONE));
        self.lifecycle.notifier.end_generation(self.generation);
        tokio::select! {
            () = self.lifecycle.notifier.wait_idle() => {}
            () = heard_until.reached() => {
                tracing::warn!(mutex = self.lifecycle.mutex(), "a listener is still busy although its service ends");
            }
        }
    }

    /// A call to the store was answered, or it failed.
    pub(crate) fn record_result(&self, error: Option<&Error>) {
        self.lifecycle.last_error.send_if_modified(|trouble| {
            let is_news = trouble.as_ref() != error;
            *trouble = error.cloned();
            is_news
        });
    }

    pub(crate) fn owner(&self) -> MutexOwner {
        self.lifecycle.state.borrow().after().clone()
    }

    pub(crate) fn owned_until(&self) -> Timestamp {
        Timestamp::from_millis(self.lifecycle.owned_until_ms.load(Ordering::Acquire))
    }
}

/// Stops what was left running when the last handle of a service goes.
pub(crate) struct StopOnDrop(pub(crate) Arc<Lifecycle>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // It goes on without anybody waiting for it; what does not run need not be stopped.
        drop(self.0.stop());
    }
}
