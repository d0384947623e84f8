//! State shared by retrieval and contention: the status, the known owner, and the listener.

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
use crate::state::MutexState;
use crate::status::Status;
use crate::timestamp::Timestamp;

/// How long the end of a service without an ownership waits for its listener.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(1);

/// State shared by a service and the task of its current run.
pub(crate) struct Lifecycle {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) state: watch::Sender<MutexState>,
    /// The error of the last call to the store.
    pub(crate) last_error: watch::Sender<Option<Error>>,
    /// Until when this service's contender is the owner, in ms of a [`Timestamp`]; 0 while it is not.
    owned_until_ms: AtomicU64,
    notifier: Arc<Notifier>,
    current: Mutex<Option<RunningTask>>,
}

struct RunningTask {
    stop: CancellationToken,
    ended: oneshot::Receiver<StoreResult<()>>,
}

/// One run of a service, as its task sees it.
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

    /// Returns true if this service's contender is the owner now.
    pub(crate) fn is_owned(&self) -> bool {
        Timestamp::now().as_millis() < self.owned_until_ms.load(Ordering::Acquire)
    }

    /// Starts a task that observes or contends until it is asked to stop.
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
            // First, so that a caller notified of the end can start the service again.
            life.status.send_replace(Status::Initial);
            // The receiver may be dropped.
            let _ = sender.send(outcome);
        });
        *current = Some(RunningTask { stop, ended });
        self.status.send_replace(Status::Running);
        Ok(())
    }

    /// Asks the task to stop, and waits for it.
    pub(crate) fn stop(&self) -> BoxFuture<'static, Result<(), ContentionError>> {
        let mut current = self.current.lock();
        if let Err(error) = self.change_status("be stopped", Status::Running, Status::Stopping) {
            return async move { Err(error) }.boxed();
        }
        let current = current.take().expect("a service that runs has a task");
        current.stop.cancel();
        async move {
            // A runtime that shuts down drops the task, which then does nothing more.
            current.ended.await.unwrap_or(Ok(())).map_err(ContentionError::from)
        }
        .boxed()
    }

    pub(crate) fn stopped(&self) -> BoxFuture<'static, ()> {
        let mut status = self.status.subscribe();
        async move {
            // An error means that the service is gone.
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
    /// Publishes the owner. `own_until` is the end of the ownership, if the owner is this service's contender.
    pub(crate) fn publish(&self, owner: MutexOwner, own_until: Option<Timestamp>) {
        let own_until_ms = own_until.map_or(0, Timestamp::as_millis);
        let is_changed = !self.lifecycle.state.borrow().after().is_owner(owner.owner_id());
        self.lifecycle.owned_until_ms.store(own_until_ms, Ordering::Release);
        self.lifecycle.state.send_modify(|state| *state = MutexState::new(state.after().clone(), owner.clone()));
        if is_changed {
            self.lifecycle.notifier.notify(self.generation, owner);
        }
    }

    /// Publishes that this run has ended and knows no owner. Completes when the listener has been notified; it waits
    /// for a slow listener until the end of the ownership, or for a second without one.
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

    /// Records the result of a call to the store.
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

/// Stops a running service when its last handle is dropped.
pub(crate) struct StopOnDrop(pub(crate) Arc<Lifecycle>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The stop continues in the background; a service that does not run need not be stopped.
        drop(self.0.stop());
    }
}
